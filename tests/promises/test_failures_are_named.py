"""Whatever goes wrong is one named error with its place, never a hang; siblings go on, and the same command continues."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from projects import SMALL, Project

from dsec import api
from dsec.cli.main import main
from dsec.core.answers import Workers
from dsec.errors import ClusterError

MISHAPS = '''
import os, sys, threading, time
import numpy as np

class Locked:
    def __init__(self, session_config):
        self.inner = {"lock": threading.Lock()}
    def step(self, observation):
        return {"action": 0}
    def on_reward(self, reward, done, info):
        pass

class Turned(Locked):
    """Its state can be saved until it steps."""
    def __init__(self, session_config):
        self.seen = []
    def step(self, observation):
        self.seen.append(lambda: observation)
        return {"action": 0}

def gives_lambda(ctx):
    return {"out": {"deep": [1, lambda: None]}}

def raises(ctx):
    return {"out": look_up({})}

def look_up(table):
    return table["missing"]

def eats(ctx):
    held = []
    while True:
        held.append(np.ones(1 << 21))

def hangs(ctx):
    time.sleep(3600)

def leaves(ctx):
    os._exit(3)

def exits(ctx):
    sys.exit("bye")

def fine(ctx, *, n):
    return {"out": n}

def total(ctx, *, xs):
    return {"out": sum(xs)}
'''
MENDED = '''
class Turned:
    def __init__(self, session_config):
        self.seen = []
    def step(self, observation):
        return {"action": 0}
    def on_reward(self, reward, done, info):
        pass
''' + "".join(
    f"\ndef {name}(ctx):\n    return {{'out': [1]}}\n"
    for name in ("gives_lambda", "raises", "eats", "hangs", "leaves", "exits")
)
PLAN = """
dsec: 1
name: mishaps
session: {agent: "agents.mishaps:Turned", env: gymnasium/CartPole-v1, seed: 1}
defaults: {retry: {max: 0}}
stages:
  gives: {uses: "agents.mishaps:gives_lambda"}
  raises: {uses: "agents.mishaps:raises"}
  hangs: {uses: "agents.mishaps:hangs", timeout: 1s}
  leaves: {uses: "agents.mishaps:leaves"}
  exits: {uses: "agents.mishaps:exits"}
  eats: {uses: "agents.mishaps:eats"}
  rolls: {uses: "dsec.stages:rollout", steps: 9}
  fine: {uses: "agents.steady:fine", matrix: {n: [1, 2, 3, 4]}, with: {n: "${{ matrix.n }}"}}
  sum: {uses: "agents.steady:total", inputs: {xs: "fine[*].out"}}
  after: {uses: "agents.steady:total", inputs: {xs: raises.out}}
"""
NAMED = {
    "gives": ("state", "gives: out.deep[1]", "function can't be kept"),
    "raises": ("stage", "raises", "KeyError: 'missing'"),
    "hangs": ("timeout", "hangs", "within 1 s"),
    "leaves": ("worker-lost", "leaves", "its worker died"),
    "exits": ("stage", "exits", "SystemExit: bye"),
    "eats": ("oom", "eats", "its worker's limit is 0.5GiB"),
    "rolls": ("state", "rolls at step 9: agent.seen[0]", "function can't be kept"),
}


@pytest.fixture
def mishaps(project: Project) -> Project:
    (project.folder / "agents/mishaps.py").write_text(MISHAPS)
    (project.folder / "agents/steady.py").write_text(MISHAPS)
    (project.folder / "plans/mishaps.yaml").write_text(PLAN)
    return Project(project.folder, project.store, "plans/mishaps.yaml")


def test_every_failure_is_named_siblings_go_on_and_the_same_command_continues(mishaps: Project) -> None:
    words = ("run", mishaps.plan, "--memory", "512MiB", "--json")
    failed = mishaps.dsec(*words)
    said = [json.loads(line) for line in failed.stdout.splitlines()]
    errors = {event["instance"]: event for event in said if event["event"] == "error"}
    assert failed.returncode == 1, failed.stderr
    assert {name: event["code"] for name, event in errors.items()} == {name: of[0] for name, of in NAMED.items()}
    for name, (_, place, message) in NAMED.items():
        assert errors[name]["where"] == place
        assert message in errors[name]["message"]
    assert errors["rolls"]["step"] == 9
    assert 'return table["missing"]' in failed.stderr, "the user's own traceback is shown"
    assert "dsec/runtime" not in failed.stderr
    assert failed.stderr.splitlines()[-1] == continues(mishaps, *words)
    assert _counts(said[-1]) == (15, 7, 7), "all siblings ran"
    (mishaps.folder / "agents/mishaps.py").write_text(MENDED)
    again = mishaps.run("--memory", "512MiB")
    assert (again["failed"], again["hits"]) == (0, 6), "init.env, the fine ones and their sum were done again"


def test_an_agent_that_cant_be_saved_is_named_with_the_attribute(mishaps: Project) -> None:
    mishaps.edit(mishaps.plan, "mishaps:Turned", "mishaps:Locked")
    failed = mishaps.dsec("run", mishaps.plan, "--select", "rolls", "--workers", "cpu=1")
    assert failed.returncode == 1
    assert "error[state]: init.agent: agent.inner.lock: _thread.lock can't be kept" in failed.stderr


def continues(project: Project, *words: str) -> str:
    """The last line of a failure."""
    return f"to continue: {shlex.join(['dsec', *words, '--store', str(project.store)])}"


def _counts(finished: dict[str, Any]) -> tuple[int, int, int]:
    return finished["calls"], finished["ran"], finished["failed"]
