"""Session: the identity of one interaction of an agent with an environment."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from dsec.core import canon, seeds

__all__ = ["Deciding", "Session", "identity", "lane_key", "new_session", "uuid7"]


class Deciding(NamedTuple):
    """The five fields of a session that decide its results."""

    agent_spec: str | None
    env_spec: str | None
    reward_fn_hash: str | None
    seed: int
    max_steps: int | None


@dataclass(frozen=True, slots=True)
class Session:
    """Exactly seven fields, immutable; in the key of no result."""

    session_id: str
    """UUIDv7 of the creation time whose random bits are a digest of the session's identity."""
    agent_spec: str | None
    """Hash of the agent's spec."""
    env_spec: str | None
    """Hash of the environment's spec."""
    reward_fn_hash: str | None
    """Hash of the reward function's spec; None is the environment's own reward."""
    seed: int
    max_steps: int | None
    """Steps are 0 to max_steps - 1; None where the plan sets no horizon."""
    creation_timestamp: str
    """UTC, ISO 8601, milliseconds."""

    def to_json(self) -> dict[str, Any]:
        """The seven fields by name."""
        return asdict(self)


def lane_key(agent: str | None, env: str | None, reward: str | None, seed: seeds.Root) -> canon.Digest:
    """Digest of what decides the results of a session, the horizon apart."""
    return canon.digest("dsec/lane/1", [agent, env, reward, seed])


def identity(deciding: Deciding, plan_name: str, cell: Mapping[str, object]) -> canon.Digest:
    """Digest by which the same plan in the same store finds its session again."""
    return canon.digest("dsec/session/1", [list(deciding), plan_name, dict(cell)])


def new_session(found_by: canon.Digest, created: datetime.datetime, deciding: Deciding) -> Session:
    """A session created at ``created`` (aware), found again by ``found_by`` (see `identity`)."""
    stamp = created.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    session_id = uuid7(created, int(found_by[:24], 16))
    return Session(session_id, *deciding, creation_timestamp=stamp)


def uuid7(created: datetime.datetime, bits: int) -> str:
    """UUIDv7 (RFC 9562, section 5.7) of a time, with the low 74 of ``bits`` as its random part."""
    value = (int(created.timestamp() * 1000) & (1 << 48) - 1) << 80
    value |= 0x7 << 76
    value |= (bits >> 62 & 0xFFF) << 64
    value |= 0b10 << 62
    value |= bits & (1 << 62) - 1
    return str(uuid.UUID(int=value))
