"""Specs: what a session's agent, environment and reward are, down to their code.

A spec's hash covers all that decides results and nothing else: placement and presentation are outside.
Fields that later formats of the product fill (services, tools) are in format 1 already, encoded as None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from dsec.core import canon

__all__ = ["AgentSpec", "CodeRef", "EnvSpec", "RewardSpec", "spec_hash"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CodeRef(_Frozen):
    """Users' code by name and by content."""

    uses: str
    """``package.module:name``, or ``gymnasium/<id>`` for an environment."""
    fingerprint: canon.Digest
    """Digest of all the code that the name can reach, or of distribution and version."""


class AgentSpec(_Frozen):
    """What builds an agent."""

    code: CodeRef
    config: Mapping[str, Any] = {}
    """``with`` after expansion."""
    files: Mapping[str, canon.Digest] = {}
    """Declared files by name, as content digests."""
    vectorized: bool | None = None
    deterministic_mode: bool | None = None
    provenance: str | None = None
    tools: None = None


class EnvSpec(_Frozen):
    """What builds an environment."""

    code: CodeRef
    config: Mapping[str, Any] = {}
    files: Mapping[str, canon.Digest] = {}
    num_envs: int | None = None
    """Environments stepped together; None is one environment without a leading axis."""


class RewardSpec(_Frozen):
    """A pure reward function."""

    code: CodeRef
    config: Mapping[str, Any] = {}
    files: Mapping[str, canon.Digest] = {}
    services: tuple[str, ...] | None = None


def spec_hash(spec: AgentSpec | EnvSpec | RewardSpec | None) -> canon.Digest | None:
    """Digest of a spec; None has no hash."""
    if spec is None:
        return None
    return canon.digest(f"dsec/{type(spec).__name__}/1", spec.model_dump())
