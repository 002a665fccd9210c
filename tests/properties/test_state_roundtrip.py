"""Any tree comes back as it was, and its bytes depend on its values alone."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from dsec.core import canon, state
from dsec.errors import CorruptObject, StateError
from dsec.store import anchors, layout, partial
from dsec.testing.blobs import MemoryBlobs

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
keys = text | st.integers(-5, 5)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True, width=64) | text | st.binary(max_size=6)
dtypes = st.sampled_from(
    ["?", "i1", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "U3", "S2", "M8[s]", ">i4", ">f8"]
)
shapes = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
arrays = dtypes.flatmap(lambda dtype: arrays_of.arrays(dtype, shapes))
tensor_dtypes = ("float32", "float64", "bfloat16", "float16", "int64", "uint8", "bool", "complex64")


def is_nan(item: object) -> bool:
    return isinstance(item, float) and math.isnan(item)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    values = draw(st.lists(st.integers(0, 200), max_size=6))
    tensor = torch.tensor(values).to(getattr(torch, draw(st.sampled_from(tensor_dtypes))))
    return torch.nn.Parameter(tensor) if tensor.is_floating_point() and draw(st.booleans()) else tensor


@st.composite
def generators(draw: st.DrawFn) -> np.random.Generator:
    kind = draw(st.sampled_from(["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]))
    generator = np.random.Generator(getattr(np.random, kind)(draw(st.integers(0, 2**64))))
    generator.integers(0, 9, draw(st.integers(0, 7)), dtype=np.uint8)
    return generator


frozen = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=4
)
leaves = (
    plain
    | arrays
    | tensors()
    | generators()
    | st.sets(plain.filter(lambda item: not is_nan(item)), max_size=4)
    | frozen
)
leaves |= arrays_of.array_shapes(max_dims=1).flatmap(lambda shape: st.just(np.float32(shape[0])))
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
thorough = settings(deadline=None, max_examples=150)


def encoded(tree: object) -> tuple[bytes, list[tuple[str, tuple[int, ...], bytes]]]:
    flat = state.flatten(tree)
    return flat.structure, [(array.dtype.str, array.shape, array.tobytes()) for array in flat.arrays]


def shuffled(tree: Any, order: random.Random) -> Any:
    """The same tree with other insertion orders and memory layouts."""
    if isinstance(tree, dict):
        entries = list(tree.items())
        order.shuffle(entries)
        return {key: shuffled(value, order) for key, value in entries}
    if isinstance(tree, list | tuple):
        return type(tree)(shuffled(item, order) for item in tree)
    if isinstance(tree, set | frozenset):
        items = list(tree)
        order.shuffle(items)
        return type(tree)(items)
    if type(tree) is np.ndarray:
        return order.choice([fortran, strided, backwards])(tree)
    return tree


def fortran(array: np.ndarray) -> np.ndarray:
    return array.copy(order="F")


def strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=0)[::2] if array.ndim else array.copy()


def backwards(array: np.ndarray) -> np.ndarray:
    return array[::-1].copy()[::-1] if array.ndim else array


def refused(tree: object) -> bool:
    """Two NaNs in one set have the same bytes, which is a StateError of its own."""
    try:
        state.flatten(tree)
    except StateError as error:
        assert "same bytes" in str(error)
        return True
    return False


@given(trees)
@thorough
def test_a_tree_comes_back_with_the_same_bytes(tree):
    if refused(tree):
        return
    flat = state.flatten(tree)
    back = state.unflatten(flat.structure, flat.arrays)
    assert encoded(back) == encoded(tree)
    assert list(state.differences(tree, back)) == []


@given(trees, st.integers(0, 10))
@thorough
def test_order_and_layout_leave_no_trace(tree, seed):
    if refused(tree):
        return
    other = shuffled(tree, random.Random(seed))
    assert encoded(other) == encoded(tree)
    assert anchors.identify(other) == anchors.identify(tree)
    assert state.equal(tree, other)


@given(trees, trees)
@thorough
def test_trees_are_equal_exactly_if_their_ids_are(left, right):
    if refused(left) or refused(right):
        return
    assert state.equal(left, right) == (anchors.identify(left) == anchors.identify(right))


@given(trees)
@thorough
def test_a_stored_tree_is_the_tree(tree):
    if refused(tree):
        return
    blobs = MemoryBlobs()
    stored = anchors.put(blobs, tree)
    back = anchors.get(blobs, stored.anchor_id)
    assert list(state.differences(tree, back)) == []
    assert anchors.put(blobs, back) == stored
    assert anchors.present(blobs, stored.anchor_id, stored.size)
    anchors.manifest(blobs, stored.anchor_id)
    key = canon.digest("test", 1)
    partial.save(blobs, key, tree)
    assert state.equal(partial.load(blobs, key), tree)


@given(trees, st.data())
@settings(deadline=None, max_examples=150)
def test_damaged_bytes_never_give_a_tree(tree, data):
    if refused(tree):
        return
    blobs = MemoryBlobs()
    name = layout.anchor_name(anchors.put(blobs, tree).anchor_id)
    content = blobs.objects[name]
    at = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.integers(at, min(len(content), at + 40)))
    damaged = content[:at] + data.draw(st.binary(max_size=3)) + content[cut:]
    if damaged == content:
        return
    blobs.objects[name] = damaged
    try:
        anchors.get(blobs, name.rpartition("/")[2])
    except CorruptObject:
        return
    raise AssertionError("damage went unnoticed")


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [b"l1:", b"m1:", b"s1:a", b"N", b"i1;", b"S1:", b"ai0;", b"t", b"g", b"p", b"c", b"n", b"d", b"Pi0;"]
        ),
        max_size=9,
    ).map(b"".join)
)
@settings(deadline=None, max_examples=400)
def test_any_bytes_are_one_tree_or_one_error(content):
    try:
        tree = state.unflatten(content, [])
    except CorruptObject:
        return
    assert state.flatten(tree).structure == content


@given(st.sampled_from([1, 2, 4, 8, 16, 12, 400_000]), st.lists(st.integers(0, 3000), max_size=4).map(tuple))
@settings(deadline=None, max_examples=300)
def test_chunks_cover_an_array_once_and_none_is_above_a_mebibyte(itemsize, shape):
    grid = layout.grid(itemsize, shape)
    assert all(length >= 1 for length in grid.chunk_shape)
    if math.prod(shape) * itemsize > 1 << 30:
        return
    at = 0
    for offset, length in grid.runs():
        assert offset == at
        assert 0 < length <= 1 << 20
        at += length
    assert at == math.prod(shape) * itemsize


PRINT_IDS = """
import json, numpy as np
from dsec.core import state
from dsec.store import anchors
words = {f"w{i}" for i in range(50)}
tree = {"set": words, "frozen": frozenset((w, i) for i, w in enumerate(sorted(words))), "x": {w: len(w) for w in words}}
tree |= {"rng": np.random.default_rng(3), "rs": np.random.RandomState(3), "a": np.arange(6.0).reshape(2, 3)}
print(json.dumps([anchors.identify(tree), anchors.identify(list(tree.values()))]))
"""


def test_ids_are_the_same_in_every_process_and_for_every_hash_seed():
    found = set()
    for seed in ("0", "1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PRINT_IDS], env=environment, capture_output=True, text=True, check=True
        )
        found.add(tuple(json.loads(done.stdout)))
    assert len(found) == 1
