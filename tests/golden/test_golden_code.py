"""Fingerprints of format 1 stay what they are: a changed digest would run everything again for no edit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsec.code import Fingerprint, Project

GOLDEN = Path(__file__).parent / "v1" / "code.json"

FILES = {
    "agents/__init__.py": '"""Agents."""\n\nfrom .learner import Learner as Learner\n',
    "agents/learner.py": '''\
import math
from dataclasses import dataclass
from typing import TypedDict

from . import scoring as rules
from .scoring import *


class Out(TypedDict):
    agent: dict
    loss: float


@dataclass
class Settings:
    """What can be set."""

    rate: float = 1e-3
    name: str = "naïve"


class Learner(rules.Scorer):
    kinds = ("a", b"b", 0x10, 1_000, 2.5e-4, 3j, ..., None, True)

    def __init__(self, session_config):
        super().__init__()
        self.settings = Settings()

    def step(self, observation, /, *rest, scale: float = SCALE, **more):
        match observation:
            case [x, *_] if x > 0:
                return {"action": int(x @ self.weight), "extras": {}}
            case {"seen": y}:
                return {"action": y}
        return {"action": 0 if (n := len(rest)) else -n}

    @staticmethod
    def unused():
        return [i for i in range(3) if i % 2]


def body(ctx, *, agent, batch) -> Out:
    try:
        loss = rules.score(batch) / math.pi
    except* ValueError as group:
        raise RuntimeError(f"{group!r:>{10}} {'a' 'b'}") from None
    return {"agent": agent, "loss": loss}


async def never_named():
    async with ctx() as held:
        yield await held
''',
    "agents/scoring.py": """\
__all__ = ["SCALE", "score"]

SCALE = 2
SCALE = SCALE + 1
weights = {"x": lambda v: v[1:2, ::3]}
if SCALE > 1:
    LIMIT = 10
else:
    LIMIT = 20
print("registered")


class Scorer:
    weight = 1


def score(batch):
    return min(LIMIT, sum(w(batch) for w in weights.values()))
""",
    "envs.py": """\
class Walk:
    def __init__(self, length=5):
        self.length = length

    def deterministic_reset(self, seed):
        self.at = seed % self.length
        return self.at, {}
""",
}
NAMES = ("agents:Learner", "agents.learner:body", "agents.scoring:score", "envs:Walk")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return Project(tmp_path)


def plain(found: Fingerprint) -> dict[str, object]:
    return {"digest": found.digest, "definitions": dict(found.definitions)}


@pytest.mark.parametrize("name", NAMES)
def test_a_fingerprint_is_that_of_format_1(project: Project, name: str) -> None:
    found = project.fingerprint(name)
    assert found.distributions == {}, "a version of something installed would be in the digest"
    assert plain(found) == json.loads(GOLDEN.read_text())[name]


def test_every_golden_fingerprint_has_its_name() -> None:
    assert sorted(json.loads(GOLDEN.read_text())) == sorted(NAMES)
