"""Agents, environments and bodies that tests name; importable by name, as users' code is."""

from __future__ import annotations

import dataclasses
import enum
import random
from typing import Any, TypedDict

import numpy as np
import torch

import dsec
from dsec.runtime import chain


class Mood(enum.Enum):
    CALM = 1
    EAGER = 2


@dataclasses.dataclass
class Memory:
    seen: int
    last: np.ndarray


class Drifter(dsec.Agent):
    """State by attributes: a stream, torch's stream, a network, its optimizer, a bare tensor, an enum, a dataclass."""

    def __init__(self, session_config):
        super().__init__(session_config)
        self.gain = session_config.get("gain", 1.0)
        self.generator = session_config["torch_generator"]
        self.space = session_config["action_space"]
        self.net = torch.nn.Linear(4, 2)
        self.bias = torch.zeros(2, requires_grad=True)
        self.optimizer = torch.optim.Adam([*self.net.parameters(), self.bias], lr=0.05)
        self.heads = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
        self.mood = Mood.CALM
        self.memory = Memory(0, np.zeros(4, np.float32))
        self.heard = 0.0

    def step(self, observation):
        self.memory = Memory(self.memory.seen + 1, np.asarray(observation, np.float32))
        with torch.no_grad():
            logits = self.net(torch.as_tensor(observation)) + self.bias
            logits = self.heads[0](logits) + torch.rand(2, generator=self.generator)
        action = int(logits[1] + self.rng.normal() > logits[0])
        return {"action": action, "extras": {"logits": logits.numpy(), "heard": np.float64(self.heard)}}

    def on_reward(self, reward, done, info):
        self.heard = 0.9 * self.heard + reward + done

    def learn(self, batch):
        batches = batch if isinstance(batch, list) else [batch]
        for one in batches:
            loss = (self.net(torch.tensor(one["observations"])) + self.bias).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.mood = Mood.EAGER
        self.rng.random()
        return {"loss": loss, "batches": len(batches), "curve": np.arange(3.0)}


class Owner:
    """State by its own state_dict, with its stream in it; no base class."""

    def __init__(self, session_config):
        self.rng = session_config["rng"]
        self.seen = 0

    def step(self, observation):
        self.seen += 1
        return {"action": int(self.rng.integers(2))}

    def on_reward(self, reward, done, info):
        pass

    def state_dict(self):
        return {"rng": self.rng, "seen": self.seen}

    def load_state_dict(self, state):
        self.rng, self.seen = state["rng"], state["seen"]


class Batcher(Owner):
    vectorized = True

    def __init__(self, session_config):
        super().__init__(session_config)
        self.size = session_config["num_envs"]

    def step(self, observation):
        assert observation.shape == (self.size, 4)
        self.seen += 1
        return {"action": self.rng.integers(2, size=self.size)}


class Net(torch.nn.Module):
    """A module that is an agent: parameters by torch's state_dict, the rest by attributes."""

    def __init__(self, session_config):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        self.steps = 0

    def step(self, observation):
        self.steps += 1
        with torch.no_grad():
            return {"action": int(self.layer(torch.as_tensor(observation)).argmax())}

    def on_reward(self, reward, done, info):
        pass

    def learn(self, batch):
        self.optimizer.zero_grad()
        self.layer(torch.tensor(batch["observations"])).square().mean().backward()
        self.optimizer.step()


class Greeter(Owner):
    """Told what it was told."""

    told: Any = None

    def __init__(self, session_config):
        super().__init__(session_config)
        type(self).told = session_config


class Caller(Drifter):
    def learn(self, batch):
        self.callback = lambda: None


class Hoarder(dsec.Agent):
    def step(self, observation):
        self.seen = [lambda: observation]
        return {"action": 0}


class Half(Owner):
    load_state_dict = None


class Silent(Owner):
    on_reward = None


class Stumbler(Owner):
    def step(self, observation):
        if self.seen == 40:
            raise ValueError("bad lr")
        return super().step(observation)

    def learn(self, batch):
        return [1]


class Refuser(Owner):
    def __init__(self, session_config):
        raise RuntimeError("no")


class Counting:
    """An environment without spaces."""

    def __init__(self, length=5):
        self.length, self.at, self.seed = length, 0, 0

    def deterministic_reset(self, seed):
        self.at, self.seed = 0, seed % 3
        return np.array([0.0, self.seed, 0.0, 0.0], np.float32), {}

    def step(self, action):
        self.at += 1
        shown = np.array([self.at, self.seed, action, 0.0], np.float32)
        return shown, float(self.seed + action), self.at >= self.length, False, {}

    def state_hash(self):
        return chain.state_digest(repr((self.at, self.seed)).encode())

    def state_dict(self):
        return {"at": self.at, "seed": self.seed}

    def load_state_dict(self, tree):
        self.at, self.seed = tree["at"], tree["seed"]


def pole_reward(step, *, scale=1.0):
    return {"up": scale * step.reward, "centre": -abs(float(step.next_observation[0]))}


class Offset:
    def __init__(self, by):
        self.by = by

    def __call__(self, step):
        return step.reward + self.by


# ---- bodies --------------------------------------------------------------------------------------------------


def one(ctx, *, value=1):
    return {"number": value}


def add(ctx, *, left, right=0, by=1):
    ctx.log(sum=left + right + by)
    return {"sum": left + right + by}


def gather(ctx, *, numbers):
    return {"numbers": numbers, "cells": list(ctx.cells("numbers"))}


def draws(ctx):
    return {
        "numbers": ctx.rng().random(3),
        "other": ctx.rng("other").random(3),
        "more": ctx.rng("other").random(3),
        "tensor": torch.rand(3, generator=ctx.torch_generator()),
        "id": str(ctx.uuid()),
        "ids": [str(ctx.uuid()), str(ctx.uuid())],
        "now": ctx.now().isoformat(),
    }


def draws_globally(ctx):
    return {"numbers": [random.random(), float(np.random.rand()), float(torch.rand(()))]}


def fails(ctx, *, at=None):
    if at is not None:
        ctx.progress(at)
    raise ValueError("bad lr")


def exits(ctx):
    raise SystemExit(3)


def gives_list(ctx):
    return [1]


def gives_nothing(ctx):
    return None


def gives_function(ctx):
    return {"model": {"layers": [1, {"activation": lambda x: x}]}}


class Typed(TypedDict):
    left: int
    right: int


def typed(ctx, *, leave_out=False, extra=False) -> Typed:
    made = {"left": 1, "right": 2}
    if leave_out:
        del made["right"]
    if extra:
        made["middle"] = 3
    return made


def many(ctx, *, count):
    ctx.log(**{f"stat_{number}": number for number in range(count)})
    return {f"output_{number}": number for number in range(count)}


def measures(ctx):
    return {"metrics": {"loss": np.float32(0.5), "name": "x", "curve": [1, 2]}}


def reads(ctx, *, table=None, name="words.txt"):
    found = table if table is not None else ctx.file(name)
    return {"text": found.read_text(), "name": found.name}


def asks(ctx):
    ctx.ask("pricing", {})


def climbs(ctx, *, steps=6, die_at=None):
    """Sums draws; with `die_at`, raises there after it offered what it had."""
    found = ctx.recover() or {"step": 0, "total": 0.0, "ids": []}
    for step in range(found["step"], steps):
        ctx.progress(step)
        if step == die_at:
            raise RuntimeError("power cut")
        found = {
            "step": step + 1,
            "total": found["total"] + ctx.rng("walk").random() + float(torch.rand((), generator=ctx.torch_generator())),
            "ids": [*found["ids"], str(ctx.uuid())],
        }
        ctx.log(total=found["total"])
        ctx.save(found)
    return {"total": found["total"], "ids": found["ids"]}


def shows_types(ctx, *, tree):
    """What a body gets of each leaf."""
    return {"types": {name: type(value).__name__ for name, value in tree.items()}}


def keeps_all(ctx):
    shared = torch.arange(4.0)
    return {
        "tree": {
            "tensor": shared,
            "again": shared,
            "half": torch.ones(2, dtype=torch.bfloat16),
            "parameter": torch.nn.Parameter(torch.ones(2)),
            "array": np.arange(3),
            "mood": Mood.CALM,
            "memory": Memory(1, np.zeros(2)),
            "net": torch.nn.Linear(1, 1),
            "stream": np.random.Generator(np.random.Philox(key=1)),
            "torch_stream": torch.Generator().manual_seed(1),
        }
    }
