from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from dsec.core import state
from dsec.errors import AbsentError, CorruptObject, UsageError
from dsec.store import anchors
from dsec.store.view import AnchorStore, zarr_store
from dsec.testing.blobs import MemoryBlobs


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


def opened(blobs: MemoryBlobs, tree: object) -> Any:
    return zarr.open_group(zarr_store(blobs, anchors.put(blobs, tree).anchor_id), mode="r")


def test_arrays_are_found_by_their_path(blobs):
    weight = np.arange(12, dtype="f4").reshape(3, 4)
    group = opened(blobs, {"policy": {"fc1.weight": weight, "layers": [weight, weight + 1]}, "step": 17})
    assert (group["policy/fc1.weight"][...] == weight).all()
    assert (group["policy/layers/1"][1:, 2] == (weight + 1)[1:, 2]).all()
    assert group["policy/fc1.weight"].dtype == np.float32
    assert sorted(name for name, _ in group["policy"].members()) == ["fc1.weight", "layers"]


SHAPES = [(), (0, 3), (5,), (10_000,), (300, 1000), (2, 300, 1000), (3, 700, 400), (2, 1_500_000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", "c8"])
def test_arrays_of_every_shape_read_as_they_were(blobs, shape, dtype):
    array = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    shown = opened(blobs, {"x": array})["x"]
    assert shown.dtype == array.dtype
    assert np.array_equal(shown[...], array)


def test_a_chunk_is_read_alone(blobs):
    group = opened(blobs, {"trace": np.arange(20_000), "w": np.random.default_rng(0).random((600, 1000))})
    assert group["trace"].chunks == (4096,)
    for name in list(blobs.names("chunks/"))[1:]:
        blobs.remove(name)
    assert group["trace"][5000] == 5000


def test_tensors_show_their_values_or_their_bits(blobs):
    module = torch.nn.Linear(3, 2)
    group = opened(blobs, {"net": module, "half": torch.ones(2, dtype=torch.bfloat16)})
    assert (group["net/weight"][...] == module.weight.detach().numpy()).all()
    assert group["net"].attrs["dsec:class"] == "torch.nn.modules.linear:Linear"
    assert group["half"].dtype == np.uint16
    assert group["half"].attrs["dsec:dtype"] == "bfloat16"
    assert group["half"][0] == 0x3F80


def test_text_and_dates_show_their_bits(blobs):
    group = opened(blobs, {"s": np.array(["ab", "c"]), "b": np.array([b"xyz"]), "t": np.array([5], "M8[s]")})
    assert group["s"][...].view("<U2")[:, 0].tolist() == ["ab", "c"]
    assert bytes(group["b"][0]) == b"xyz"
    assert group["t"][0] == 5
    assert {name: array.attrs["dsec:dtype"] for name, array in group.members()} == {
        "s": "<U2",
        "b": "|S3",
        "t": "<M8[s]",
    }


def test_other_values_are_attributes(blobs):
    tree = {"a": 1, "b": None, "c": [1.5, float("nan"), -float("inf")], "d": {"e": "x"}, "f": b"\0", "g": (1, {"h": 2})}
    tree |= {"s": {2, 1}, "n": np.float32(0.5), "rng": np.random.default_rng(0), "big": 2**70}
    group = opened(blobs, tree)
    assert group.attrs["c"] == [1.5, "NaN", "-Infinity"]
    assert group["d"].attrs["e"] == "x"
    assert group.attrs["f"] == {"base64": "AA=="}
    assert group.attrs["g"] == [1, {"h": 2}]
    assert (group.attrs["s"], group.attrs["n"], group.attrs["rng"], group.attrs["big"]) == (
        [1, 2],
        0.5,
        "Generator",
        2**70,
    )


def test_names_that_a_path_can_not_hold_are_escaped(blobs):
    keys: list[str | int] = ["a/b", "", ".", "..", "zarr.json", "__x", "%", "c", "é", "1", 1, -1]
    group = opened(blobs, {key: np.array([number]) for number, key in enumerate(keys)})
    names = {int(array[0]): name for name, array in group.members()}
    assert [names[number] for number in range(len(keys))] == [
        *("a%2Fb", "%", "%2E", "%2E.", "%7Aarr.json", "%5F_x", "%25", "c", "é", "%31", "1", "-1")
    ]


def test_a_root_that_is_no_mapping_is_called_value(blobs):
    assert opened(blobs, np.arange(3))["value"][2] == 2
    assert opened(blobs, 5).attrs["value"] == 5


def test_anchors_in_the_tree_are_groups(blobs):
    inner = anchors.put(blobs, {"w": np.arange(3)}).anchor_id
    scalar = anchors.put(blobs, 5).anchor_id
    group = opened(
        blobs, {"agent": state.AnchorRef(inner), "list": [state.AnchorRef(inner)], "n": state.AnchorRef(scalar)}
    )
    assert group["agent/w"][1] == group["list/0/w"][1] == 1
    assert group.attrs["n"] == 5


def test_a_missing_chunk_raises_and_is_never_zeros(blobs):
    group = opened(blobs, {"w": np.random.default_rng(0).random((600, 1000))})
    blobs.remove(next(iter(blobs.names("chunks/"))))
    with pytest.raises(AbsentError, match="its chunk"):
        group["w"][...]


def test_a_damaged_chunk_raises(blobs):
    group = opened(blobs, {"w": np.random.default_rng(0).random((600, 1000))})
    name = next(iter(blobs.names("chunks/")))
    blobs.objects[name] = blobs.objects[name][:-1] + b"!"
    with pytest.raises(CorruptObject, match=name):
        group["w"][...]


def test_a_missing_anchor_raises(blobs):
    with pytest.raises(AbsentError):
        zarr_store(blobs, "00" * 32)


def test_the_store_is_read_only(blobs):
    group = opened(blobs, {"w": np.arange(3)})
    with pytest.raises((ValueError, UsageError)):
        group["w"][0] = 1
    with pytest.raises((ValueError, UsageError)):
        group.create_array("x", shape=(1,), dtype="i4")
    with pytest.raises(UsageError, match="writing"):
        group.store.with_read_only(False)
    assert group.store.with_read_only(True) is group.store


async def collected(store: AnchorStore, prefix: str) -> list[str]:
    return [key async for key in store.list_prefix(prefix)]


def test_keys_are_listed_and_every_one_can_be_read(blobs):
    tree = {"a": np.arange(5000), "g": {"z": np.array(1.0), "e": np.zeros((0, 2))}, "c": {"c": np.arange(3)}}
    store = zarr_store(blobs, anchors.put(blobs, tree).anchor_id)
    keys = asyncio.run(collected(store, ""))
    assert keys == [
        *("zarr.json", "a/zarr.json", "a/c/0", "a/c/1", "c/zarr.json", "c/c/zarr.json", "c/c/c/0"),
        *("g/zarr.json", "g/e/zarr.json", "g/z/zarr.json", "g/z/c"),
    ]
    prototype = default_buffer_prototype()
    for key in keys:
        assert asyncio.run(store.exists(key))
        assert asyncio.run(store.get(key, prototype)) is not None
    for key in ("x", "a/c/2", "a/c/x", "a/c/0/0", "a/c/-1", "g/e/c/0/0", "a/b/zarr.json", "zarr.json/x", "c", "a/c"):
        assert asyncio.run(store.get(key, prototype)) is None
        assert not asyncio.run(store.exists(key))
    assert asyncio.run(collected(store, "g/z/")) == ["g/z/zarr.json", "g/z/c"]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (RangeByteRequest(8, 16), [1]),
        (OffsetByteRequest(24), [3]),
        (SuffixByteRequest(16), [2, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_parts_of_a_chunk_can_be_read(blobs, request_, expected):
    store = zarr_store(blobs, anchors.put(blobs, {"x": np.arange(4)}).anchor_id)
    buffer = asyncio.run(store.get("x/c/0", default_buffer_prototype(), request_))
    assert buffer is not None
    assert np.frombuffer(buffer.to_bytes(), "<i8").tolist() == expected
    pair = asyncio.run(store.get_partial_values(default_buffer_prototype(), [("x/c/0", request_), ("y", None)]))
    assert pair[1] is None


def test_two_views_of_one_anchor_are_equal(blobs):
    one, other = (anchors.put(blobs, number).anchor_id for number in (1, 2))
    assert zarr_store(blobs, one) == zarr_store(blobs, one) != zarr_store(blobs, other)
    assert one in repr(zarr_store(blobs, one))
