"""Anchors: encode, put, get. Run: python bench/anchors.py [megabytes]."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dsec.store import anchors, layout
from dsec.store.blobs import BlobStore, LocalBlobs
from dsec.testing.blobs import MemoryBlobs


def ppo_tree() -> dict[str, object]:
    """Policy, value net and Adam of CartPole PPO with 64-wide layers, a generator, and counters: 36 arrays, 110 KB."""
    generator = np.random.default_rng(0)
    sizes = [(64, 4), (64,), (64, 64), (64,), (2, 64), (2,), (64, 4), (64,), (64, 64), (64,), (1, 64), (1,)]
    weights = [generator.standard_normal(size).astype("f4") for size in sizes]
    adam = {index: {"step": 100.0, "exp_avg": w * 0.1, "exp_avg_sq": w * w} for index, w in enumerate(weights)}
    group = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-5, "params": list(range(12))}
    return {
        "agent": {
            "policy": {f"layer{i}": w for i, w in enumerate(weights)},
            "adam": {"state": adam, "groups": [group]},
        },
        "rng": generator,
        "step": 17,
    }


def as_torch(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: as_torch(value) for key, value in tree.items()}
    return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree


def median_us(act: Callable[[], object], count: int = 300) -> float:
    act()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def rewrite(blobs: BlobStore, tree: object) -> None:
    """Put an anchor that is not there."""
    blobs.remove(layout.anchor_name(anchors.put(blobs, tree).anchor_id))


def small(name: str, tree: object, folder: Path) -> None:
    memory, local = MemoryBlobs(), LocalBlobs(folder)
    stored = anchors.put(memory, tree)
    print(f"{name}: {stored.size} bytes")
    print(f"  encode and id     {median_us(lambda: anchors.identify(tree)):.0f} us")
    print(f"  put, memory       {median_us(lambda: rewrite(memory, tree)):.0f} us")
    print(f"  put, local        {median_us(lambda: rewrite(local, tree)):.0f} us")
    anchors.put(memory, tree)
    print(f"  get, memory       {median_us(lambda: anchors.get(memory, stored.anchor_id)):.0f} us")


def large(megabytes: int, folder: Path) -> dict[str, float]:
    """Gigabytes a second, by step."""
    tree = {"w": np.random.default_rng(0).standard_normal((megabytes << 8, 1024), dtype="f4")}
    rates: dict[str, float] = {}
    local, raw = LocalBlobs(folder), folder / "raw"
    steps: list[tuple[str, Callable[[], object]]] = [
        ("raw write", lambda: raw.write_bytes(tree["w"].data)),
        ("put", lambda: anchors.put(local, tree)),
        ("put again", lambda: anchors.put(local, tree)),
        ("torch.save", lambda: torch.save(torch.from_numpy(tree["w"]), raw)),
        ("get, verified", lambda: anchors.get(local, anchors.identify(tree))),
    ]
    for name, act in steps:
        begin = time.perf_counter()
        act()
        rates[name] = (megabytes << 20) / (time.perf_counter() - begin) / 1e9
    return rates


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        small("numpy", ppo_tree(), Path(made))
        small("torch", as_torch(ppo_tree()), Path(made))
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    rounds = []
    for _ in range(3):  # the first one touches memory that the machine has not given out yet
        with tempfile.TemporaryDirectory() as made:
            rounds.append(large(size, Path(made)))
    for step in rounds[0]:
        print(f"{step:16} {statistics.median(rates[step] for rates in rounds[1:]):.2f} GB/s")
