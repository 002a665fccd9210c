"""Ids of anchors in format 1. The file is added to, never edited: a change here orphans every store."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3

from dsec.core import state
from dsec.store import anchors, layout
from dsec.testing.blobs import MemoryBlobs

IDS = json.loads((Path(__file__).parent / "v1/anchors.json").read_text())


class Color(enum.Enum):
    RED = 1


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class Pose:
    x: float
    y: int


class Policy:
    def state_dict(self) -> dict[str, object]:
        return {"w": np.zeros(2, "<f4")}


for kind in (Color, Mode, Pose, Policy):
    kind.__module__ = "golden"

WEIGHT = torch.arange(4.0)
GENERATOR = np.random.Generator(np.random.PCG64(3))

TREES: dict[str, object] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 255, 2**64, -(2**200)],
    "floats": [0.0, -0.0, 0.1, math.inf, -math.inf, math.nan],
    "text": ["", "a", "naïve 🐍"],
    "bytes": b"\x00\xff",
    "nested": {"b": [1, (2, {"c": None})], "a": (), "long key": {}, 3: "int", -3: "negative"},
    "sets": [{3, 1, 2}, frozenset({"b", "a"}), {(1, "x"), None}],
    "enum": Color.RED,
    "flag": Mode.READ | Mode.WRITE,
    "dataclass": Pose(1.5, 2),
    "object": Policy(),
    "reference": {"agent": state.AnchorRef("ab" * 32)},
    "numpy scalars": [np.float32(1.5), np.int8(-3), np.bool_(True), np.str_("ab"), np.datetime64("2020-01-01", "s")],
    "small arrays": [np.arange(6, dtype="<i4").reshape(2, 3), np.array(2.5), np.zeros((0, 3)), np.array([True])],
    "big-endian array": np.arange(3, dtype=">f8"),
    "text and date arrays": [
        np.array(["ab", "c"]),
        np.array([b"xyz"]),
        np.array([5], "<M8[s]"),
        np.array([5], "<m8[ms]"),
    ],
    "complex and half arrays": [np.array([1 + 2j], "<c8"), np.array([1.5], "<f2")],
    "compressed chunk": np.zeros(5000, "|u1"),
    "trace column": np.arange(10_000, dtype="<i8"),
    "three chunks": np.arange(600_000, dtype="<i4").reshape(600, 1000),
    "cut on axis 1": np.arange(2_400_000, dtype="<u2").reshape(2, 3, 400_000),
    "tensors": [
        torch.arange(3.0),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor(3),
    ],
    "shared tensors": {"encoder": WEIGHT, "decoder": WEIGHT, "copy": WEIGHT.clone()},
    "generators": [
        np.random.Generator(np.random.Philox(key=7)),
        np.random.Generator(np.random.MT19937(1)),
        GENERATOR,
        GENERATOR,
    ],
    "more generators": [np.random.RandomState(4), np.random.SFC64(2), np.random.PCG64DXSM(2)],
    "stand-ins": [state.TorchGenerator("cpu", b"\x01\x02"), state.Tensor(np.ones(2, "|u1"), "float8_e5m2", "frozen")],
}


@pytest.mark.parametrize("name", TREES)
def test_an_anchor_has_the_id_it_always_had(name):
    assert anchors.identify(TREES[name]) == IDS[name]


@pytest.mark.parametrize("name", TREES)
def test_a_stored_golden_tree_comes_back(name):
    blobs = MemoryBlobs()
    assert state.equal(anchors.get(blobs, anchors.put(blobs, TREES[name]).anchor_id), TREES[name])


def test_every_golden_id_has_its_tree():
    assert sorted(IDS) == sorted(TREES)
    assert len(set(IDS.values())) == len(IDS)


GOLDEN_OBJECT = (
    "000000000000803f6c333a69313b6232313a6d323a73313a776169303b73343a7374657069373b6c313a6c333a73333a3c66"
    "346c313a69323b6233323acd091e6e56c974e8e737c114f32309ab8bf95db6de7753fa467c6c57049ec8540108000000cd09"
    "1e6e56c974e8e737c114f32309ab8bf95db6de7753fa467c6c57049ec854c415685c1bc021cb16bacd1486494465eac461ad"
    "bf894ec9037861b776b8ad0955000000000000002500000000000000e4a6375288bc3b61ecb2ca7af050a8f0d4a976591689"
    "e01c60d06daf7f5212e644534543414e4331"
)
"""Hexadecimal bytes of the object of ``{"step": 7, "w": [0.0, 1.0]}`` with w as float32."""


def test_bytes_written_by_the_first_version_are_read():
    blobs = MemoryBlobs()
    content = bytes.fromhex(GOLDEN_OBJECT)
    anchor_id = anchors.identify({"step": 7, "w": np.array([0, 1], "<f4")})
    blobs.objects[layout.anchor_name(anchor_id)] = content
    assert anchors.get(blobs, anchor_id)["w"].tolist() == [0.0, 1.0]
    fresh = MemoryBlobs()
    anchors.put(fresh, anchors.get(blobs, anchor_id))
    assert fresh.objects[layout.anchor_name(anchor_id)] == content


def test_the_page_is_enough_to_compute_an_id():
    chunk = blake3(bytes.fromhex("000000000000803f")).digest()
    structure = b"m2:s1:wai0;s4:stepi7;"
    manifest = b"l3:i1;b%d:%bl1:l3:s3:<f4l1:i2;b32:%b" % (len(structure), structure, chunk)
    anchor_id = blake3(b"dsec/anchor/1\0" + manifest).hexdigest()
    assert anchor_id == anchors.identify({"step": 7, "w": np.array([0, 1], "<f4")})
    assert anchor_id in (Path(__file__).parents[2] / "docs/reference/store-format.md").read_text()
