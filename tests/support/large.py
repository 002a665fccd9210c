"""Projects with plans of many calls, of bodies and agents that do next to nothing."""

from __future__ import annotations

from pathlib import Path

from dsec import api

BODIES = '''"""Bodies that do next to nothing."""


def begin(ctx):
    return {"x": 0}


def bump(ctx, x):
    return {"x": x + 1}


def cell(ctx, n):
    return {"x": n}
'''
GRID = """
dsec: 1
name: grid
params: {iterations: 200, steps: 8}
session:
  agent: {uses: "agents.climber:Climber", with: {patience: 0.95, segment: "${{ matrix.segment }}"}}
  env: gymnasium/CartPole-v1
  seed: ${{ matrix.seed }}
  max_steps: ${{ params.iterations * params.steps }}
matrix:
  segment: {file: ../segments.csv, column: segment_id}
  seed: [0, 1, 2]
stages:
  train:
    iterate:
      times: ${{ params.iterations }}
      carry: {agent: {from: init.agent, next: learn.agent}, env: {from: init.env, next: collect.env}}
    stages:
      collect: {uses: "dsec.stages:rollout", steps: "${{ params.steps }}", inputs: {agent: carry.agent, env: carry.env}}
      learn: {uses: "dsec.stages:learn", inputs: {agent: collect.agent, batch: collect.batch}}
"""
"""287 segments x 3 seeds x 200 iterations x 2 stages: 344,400 calls, and 864 beginnings."""
CELLS = """
dsec: 1
name: cells
stages:
  cell: {uses: "bodies:cell", matrix: {n: {range: 1000}}, with: {n: "${{ item.n }}"}}
"""
GRID_CALLS = 287 * 3 * 200 * 2
BEGINNINGS = 287 * 3 + 3
"""Agents of all sessions, and one environment for each seed: segments share it."""


def chain(links: int) -> str:
    """A plan of stages of which each takes the output of the one before."""
    lines = ["dsec: 1", "name: chain", "stages:", '  s0: {uses: "bodies:begin"}']
    lines += [f'  s{i}: {{uses: "bodies:bump", inputs: {{x: s{i - 1}.x}}}}' for i in range(1, links)]
    return "\n".join(lines) + "\n"


def project(folder: Path) -> Path:
    """A project with all of these plans; its folder."""
    api.init(folder, "first")
    (folder / "bodies.py").write_text(BODIES)
    (folder / "segments.csv").write_text("segment_id,weight\n" + "".join(f"s{i:03d},{i}\n" for i in range(287)))
    for name, text in (("grid", GRID), ("cells", CELLS), ("chain", chain(5000))):
        (folder / "plans" / f"{name}.yaml").write_text(text)
    return folder
