"""The project that ``dsec init`` makes: small, runnable, and meant to be changed.

One agent with one helper module, so that a first edit shows what is run again and what is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dsec.errors import UsageError

__all__ = ["create", "files"]

PYPROJECT = """\
[project]
name = "{slug}"
version = "0.1.0"
description = "An experiment with DSec"
requires-python = ">=3.11"
dependencies = ["dsec"]

[tool.setuptools]
packages = ["agents"]
"""

GITIGNORE = """\
# Results of runs; another place is named with --store or DSEC_STORE.
.dsec/
__pycache__/
"""

PLAN = """\
# Run it:            dsec run plans/first.yaml
# Run it again:      it is read from the store
# Then try:          dsec run plans/first.yaml -p iterations=60
#                    edit SPREAD in agents/scoring.py; dsec plan plans/first.yaml
dsec: 1
name: {slug}
description: A linear policy for CartPole that improves by trying
params: {{iterations: 40, steps: 500, seeds: [0, 1]}}

session:
  agent: {{uses: "agents.climber:Climber", with: {{patience: 0.95}}}}
  env: gymnasium/CartPole-v1
  seed: ${{{{ matrix.seed }}}}
  max_steps: ${{{{ params.iterations * params.steps }}}}

matrix: {{seed: "${{{{ params.seeds }}}}"}}          # one session for each seed

stages:
  train:
    iterate:
      times: ${{{{ params.iterations }}}}
      carry:
        agent: {{from: init.agent, next: learn.agent}}
        env: {{from: init.env, next: collect.env}}
    stages:
      collect:
        uses: dsec.stages:rollout
        steps: ${{{{ params.steps }}}}
        inputs: {{agent: carry.agent, env: carry.env}}
      learn:
        uses: dsec.stages:learn
        inputs: {{agent: collect.agent, batch: collect.batch}}
  eval:
    uses: dsec.stages:evaluate
    inputs: {{agent: train.agent}}
    with: {{episodes: 10}}
  table:
    uses: dsec.stages:table
    inputs: {{scores: "eval[*].score"}}            # [*] gathers over all sessions
"""

AGENTS = '''\
"""Agents of this project, and what they share."""
'''

CLIMBER = '''\
"""An agent that improves by trying: it changes its weights at random and keeps the change when it does better."""

import numpy as np

from agents.scoring import SPREAD, mean_length


class Climber:
    """A linear policy for two actions.

    Its random numbers come from ``session_config["rng"]`` alone: any other source would make runs differ.
    """

    def __init__(self, session_config):
        self.rng = session_config["rng"]
        self.patience = session_config["patience"]
        self.evaluating = session_config["mode"] == "evaluate"
        size = session_config["observation_space"].shape[0]
        self.best = np.zeros(size)
        self.best_score = 0.0
        self.trial = self.rng.normal(size=size)

    def step(self, observation):
        """Choose an action: the best weights are evaluated, the trial ones are tried."""
        weights = self.best if self.evaluating else self.trial
        return {"action": int(observation @ weights > 0)}

    def on_reward(self, reward, done, info):
        """Nothing is learnt from a single step."""

    def learn(self, batch):
        """Keep the trial if it did better, and think of the next one."""
        score = mean_length(batch)
        self.best_score *= self.patience  # an old score was perhaps luck
        if score >= self.best_score:
            self.best, self.best_score = self.trial, score
        trial = self.best + SPREAD * self.rng.normal(size=self.best.shape)
        self.trial = trial / np.linalg.norm(trial)  # only the direction counts
        return {"score": score, "best_score": self.best_score}

    def state_dict(self):
        """All that decides what the agent does next; random numbers are kept by DSec."""
        return {"best": self.best, "best_score": self.best_score, "trial": self.trial}

    def load_state_dict(self, state):
        """Go on from a saved state."""
        self.best, self.best_score, self.trial = state["best"], state["best_score"], state["trial"]
'''

SCORING = '''\
"""How trials are scored."""

SPREAD = 1.0
"""Standard deviation of the change from the best weights to the next trial."""


def mean_length(batch):
    """Steps per episode in a batch; CartPole's return is the same number."""
    ended = batch["terminated"] | batch["truncated"]
    return len(ended) / max(1, int(ended.sum()))
'''


def files(name: str) -> Mapping[str, str]:
    """Texts of a new project by their path in it.

    Parameters
    ----------
    name
        What people call it; plan and distribution get it in small letters with dashes.

    Raises
    ------
    UsageError
        If nothing is left of the name.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not slug:
        raise UsageError(f"the name {name!r} has no letter or digit", hint="choose one with --name NAME")
    return {
        "pyproject.toml": PYPROJECT.format(slug=slug),
        ".gitignore": GITIGNORE,
        "plans/first.yaml": PLAN.format(slug=slug),
        "agents/__init__.py": AGENTS,
        "agents/climber.py": CLIMBER,
        "agents/scoring.py": SCORING,
    }


def create(folder: Path, name: str) -> list[Path]:
    """Write a new project, and overwrite nothing.

    Returns
    -------
    list of Path
        The files that were made.

    Raises
    ------
    UsageError
        If one of the files is there already, or the folder can't be written; nothing is written then.
    """
    texts = {folder / path: text for path, text in files(name).items()}
    there = [path for path in texts if path.exists()]
    if there:
        raise UsageError(f"{there[0]} is there already", hint="choose another folder, or remove the file")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{folder} can't be written: {error.strerror}", hint="choose another folder") from error
    return list(texts)
