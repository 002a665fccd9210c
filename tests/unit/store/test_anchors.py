from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Sequence

import numcodecs
import numpy as np
import pytest
import torch

from dsec.core import canon, state
from dsec.core.stage import ActionKey
from dsec.errors import AbsentError, CorruptObject, StateError, StoreError, UsageError
from dsec.store import anchors, layout, partial, root, tags
from dsec.store.blobs import Buffer
from dsec.store.layout import Place, Slot
from dsec.testing.blobs import MemoryBlobs

MIB = 1 << 20
KEY = ActionKey("ab" * 32)


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


def noise(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]


def forms(blobs: MemoryBlobs, tree: object) -> set[int]:
    record = anchors.read_record(blobs, anchors.put(blobs, tree).anchor_id)
    return {slot.place for slot in record.slots.values()}


def tree_of_every_kind() -> dict[str, object]:
    return {
        "step": 17,
        "policy": {"fc1.weight": torch.arange(6.0).reshape(2, 3), "bf16": torch.ones(5, dtype=torch.bfloat16)},
        "frames": np.zeros((30, 84, 84), np.uint8),
        "replay": noise(3000, 100),
        "trace": np.arange(5000),
        "words": np.array(["ab", "c"] * 600),
        "empty": np.zeros((0, 4)),
        "scalar": np.array(2.5),
        "rng": np.random.default_rng(3),
    }


def test_a_tree_comes_back_equal_and_with_its_own_id(blobs):
    tree = tree_of_every_kind()
    stored = anchors.put(blobs, tree)
    back = anchors.get(blobs, stored.anchor_id)
    assert list(state.differences(tree, back)) == []
    assert anchors.identify(back) == anchors.identify(tree) == stored.anchor_id
    assert stored.size == blobs.size(layout.anchor_name(stored.anchor_id))


def test_arrays_that_come_back_are_ones_own(blobs):
    stored = anchors.put(blobs, {"a": np.zeros(3), "b": np.zeros(3), "c": np.zeros((600, 600))})
    back = anchors.get(blobs, stored.anchor_id)
    back["a"][0] = 1
    back["c"][0, 0] = 1
    assert back["b"][0] == 0
    assert anchors.get(blobs, stored.anchor_id)["c"][0, 0] == 0


def test_a_small_tree_is_one_object_and_the_same_tree_is_not_written_again(blobs):
    tree = {"w": np.ones((64, 64)), "step": 1}
    first = anchors.put(blobs, tree)
    assert list(blobs.names("")) == [layout.anchor_name(first.anchor_id)]
    written = blobs.written
    assert anchors.put(blobs, tree) == first
    assert blobs.written == written


def test_chunks_that_did_not_change_are_not_written_again(blobs):
    weights = noise(64 * 256, 1024)
    anchors.put(blobs, {"w": weights})
    written = blobs.written
    weights[5] = 1
    anchors.put(blobs, {"w": weights})
    assert blobs.written - written < 1.01 * MIB + 4096


def test_equal_chunks_are_stored_once(blobs):
    anchors.put(blobs, {"a": noise(600, 1000), "b": noise(600, 1000), "small": np.ones(9), "again": np.ones(9)})
    assert len(list(blobs.names("chunks/"))) == 3


def test_codecs_follow_the_dtype(blobs):
    zeros = {dtype: forms(blobs, np.zeros(4000, dtype)) for dtype in ("f4", "c8", "u1", "?", "i2", "u4", "i8", "M8[s]")}
    assert zeros.pop("f4") == zeros.pop("c8") == {Place.PLAIN}
    assert zeros.pop("u1") == zeros.pop("?") == {Place.ZSTD}
    assert zeros.pop("i2") == {Place.SHUFFLED_2}
    assert zeros.pop("u4") == {Place.SHUFFLED_4}
    assert zeros.pop("i8") == zeros.pop("M8[s]") == {Place.SHUFFLED_8}
    assert forms(blobs, torch.zeros(4000, dtype=torch.bfloat16)) == {Place.PLAIN}


def test_what_does_not_get_smaller_is_stored_as_it_is(blobs):
    assert forms(blobs, noise(4000, dtype="u1")) == {Place.PLAIN}
    assert forms(blobs, np.zeros(100, "u1")) == {Place.PLAIN}


def test_an_id_does_not_depend_on_the_codec(blobs, monkeypatch):
    tree = tree_of_every_kind()
    stored = anchors.put(blobs, tree)
    monkeypatch.setattr(anchors, "_zstd", numcodecs.Zstd(level=19, checksum=True))
    other = MemoryBlobs()
    again = anchors.put(other, tree)
    assert again.anchor_id == stored.anchor_id
    assert again.size != stored.size
    assert state.equal(anchors.get(other, again.anchor_id), tree)
    assert anchors.present(other, again.anchor_id, stored.size)


def test_one_chunk_is_read_through_arrays_of_different_dtypes(blobs):
    for tree in (np.zeros(MIB // 8, "i8").reshape(1, -1), np.zeros(MIB // 2, "i2").reshape(1, -1)):
        assert state.equal(anchors.get(blobs, anchors.put(blobs, tree).anchor_id), tree)


def test_a_trace_is_compact(blobs):
    steps = 100_000
    trace = {
        "step": np.arange(steps),
        "episode": np.arange(steps) // 200,
        "action": np.random.default_rng(0).integers(0, 2, steps),
        "reward": np.random.default_rng(0).standard_normal(steps),
        "terminated": np.arange(steps) % 200 == 199,
        "truncated": np.zeros(steps, bool),
        "hash": noise(steps, 16, dtype="u1"),
    }
    assert anchors.put(blobs, trace).size / steps < 25
    assert len(list(blobs.names(""))) == 1


GRIDS = [
    (4, (), (), [4]),
    (8, (0, 3), (1, 3), []),
    (0, (3,), (3,), []),
    (8, (10_000,), (4096,), [32768, 32768, 80000 - 65536]),
    (4, (300, 1000), (262, 1000), [1_048_000, 152_000]),
    (4, (2, 300, 1000), (1, 262, 1000), [1_048_000, 152_000] * 2),
    (1, (2, 3 * MIB), (1, MIB), [MIB] * 6),
    (1, (64 * MIB + 5,), (MIB,), [MIB] * 64 + [5]),
    (1 << 20, (2, 2), (1, 1), [MIB] * 4),
]


@pytest.mark.parametrize(("itemsize", "shape", "chunk_shape", "lengths"), GRIDS, ids=str)
def test_chunks_follow_dtype_and_shape(itemsize, shape, chunk_shape, lengths):
    grid = layout.grid(itemsize, shape)
    assert grid.chunk_shape == chunk_shape
    assert [length for _, length in grid.runs()] == lengths
    assert grid.count == len(lengths)
    assert sum(lengths) == itemsize * math.prod(shape)


def test_a_chunk_by_number_is_the_one_in_order():
    count = layout.grid(4, (2, 300, 1000)).count
    entry = layout.ArrayEntry("<f4", (2, 300, 1000), b"".join(bytes([number]) * 32 for number in range(count)))
    in_order = [(digest, length) for digest, _, length in entry.chunks()]
    assert [entry.chunk(number) for number in range(count)] == in_order


def test_only_a_self_contained_object_has_an_even_size(blobs):
    for length in range(8):
        tree = {"pad": "x" * length}
        assert anchors.put(blobs, tree).size % 2 == 0
        assert anchors.put(blobs, {**tree, "w": noise(600, 1000)}).size % 2 == 1


def test_a_self_contained_anchor_is_present_by_its_size_alone(blobs):
    stored = anchors.put(blobs, {"w": np.ones(5)})
    blobs.get = lambda name: pytest.fail(f"{name} was read")  # type: ignore[method-assign]
    assert anchors.present(blobs, stored.anchor_id, stored.size)
    assert anchors.present(blobs, stored.anchor_id)
    assert not anchors.present(blobs, "00" * 32, stored.size)


def test_an_anchor_is_present_only_with_its_separate_chunks(blobs):
    stored = anchors.put(blobs, {"w": noise(600, 1000), "i": np.arange(500_000).reshape(5, -1)})
    assert anchors.present(blobs, stored.anchor_id, stored.size)
    for name in list(blobs.names("chunks/")):
        content = blobs.objects.pop(name)
        assert not anchors.present(blobs, stored.anchor_id, stored.size)
        blobs.objects[name] = b""
        assert not anchors.present(blobs, stored.anchor_id, stored.size)
        blobs.objects[name] = content
    assert anchors.present(blobs, stored.anchor_id, stored.size)


def test_a_torn_object_is_not_present(blobs):
    stored = anchors.put(blobs, {"w": np.ones(5)})
    name = layout.anchor_name(stored.anchor_id)
    for length in range(stored.size):
        blobs.objects[name] = blobs.objects[name][:length]
        assert not anchors.present(blobs, stored.anchor_id, stored.size)


def test_a_put_repairs_a_torn_object_and_a_torn_chunk(blobs):
    tree = {"w": noise(600, 1000), "i": np.arange(500_000).reshape(5, -1)}
    stored = anchors.put(blobs, tree)
    for name in list(blobs.names("")):
        blobs.objects[name] = blobs.objects[name][:-7]
    anchors.put(blobs, tree)
    assert state.equal(anchors.get(blobs, stored.anchor_id), tree)


def test_a_manifest_is_read_without_chunks(blobs):
    stored = anchors.put(blobs, {"kind": "env", "step": 17, "w": noise(600, 1000), "t": torch.ones(2)})
    for name in list(blobs.names("chunks/")):
        blobs.remove(name)
    tree = anchors.manifest(blobs, stored.anchor_id)
    assert (tree["kind"], tree["step"]) == ("env", 17)
    assert tree["w"].shape == (600, 1000)
    assert tree["t"].dtype == "float32"


def test_references_are_leaves_for_get_and_trees_for_load(blobs):
    agent = anchors.put(blobs, {"w": torch.ones(2)}).anchor_id
    env = anchors.put(blobs, {"inner": [state.AnchorRef(agent)]}).anchor_id
    both = anchors.put(blobs, {"agent": state.AnchorRef(agent), "env": state.AnchorRef(env), "w": noise(600, 1000)})
    assert anchors.get(blobs, both.anchor_id)["agent"] == state.AnchorRef(agent)
    tree = anchors.load(blobs, both.anchor_id)
    assert tree["agent"]["w"].array.tolist() == [1, 1]
    assert tree["env"]["inner"][0]["w"].array.tolist() == [1, 1]
    found = anchors.reach(blobs, both.anchor_id)
    assert set(found.anchors) == {agent, env}
    assert set(found.chunks) == set(blobs.names("chunks/"))


def test_anchors_that_refer_too_deep_are_refused(blobs):
    anchor_id = anchors.put(blobs, {}).anchor_id
    for _ in range(20):
        anchor_id = anchors.put(blobs, [state.AnchorRef(anchor_id)]).anchor_id
    with pytest.raises(StateError, match="deep"):
        anchors.load(blobs, anchor_id)


def test_a_class_is_restored_only_when_it_is_passed(blobs):
    tree = {"place": Place.PLAIN, "slot": layout.grid(4, (3,))}
    anchor_id = anchors.put(blobs, tree).anchor_id
    assert anchors.get(blobs, anchor_id)["slot"].name == "dsec.store.layout:Grid"
    assert anchors.get(blobs, anchor_id, resolve=state.by_class([layout.Grid])) == tree


def test_tags_are_kept_as_the_tags_of_the_store_are(tmp_path):
    store = root.open_store(tmp_path)
    tree = {"w": np.ones(2)}
    anchor_id = anchors.put(store.blobs, tree, tags=["best", "../odd tag"]).anchor_id
    assert anchors.identify(tree) == anchor_id
    assert {(found.anchor_id, found.tag) for found in tags.all_tags(store)} == {
        (anchor_id, "best"),
        (anchor_id, "../odd tag"),
    }
    tags.put_tag(store.blobs, tags.Tagged(anchor_id, "best"))
    assert len(list(tags.all_tags(store))) == 2


def test_nothing_is_written_of_a_tree_that_is_refused(blobs):
    with pytest.raises(StateError, match="client"):
        anchors.put(blobs, {"w": noise(600, 1000), "client": object()})
    assert not blobs.objects


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "AB" * 32, "ab" * 31, "ab" * 32 + "\n"])
def test_only_an_anchor_id_names_an_anchor(blobs, bad):
    for ask in (anchors.get, anchors.present, anchors.manifest):
        with pytest.raises(UsageError, match="no anchor id"):
            ask(blobs, bad)


def test_an_absent_anchor_and_an_absent_chunk_are_named(blobs):
    with pytest.raises(AbsentError, match="anchors/00/0000"):
        anchors.get(blobs, "00" * 32)
    stored = anchors.put(blobs, {"w": noise(600, 1000)})
    chunk = next(iter(blobs.names("chunks/")))
    blobs.remove(chunk)
    with pytest.raises(AbsentError, match=f"{stored.anchor_id}: its chunk {chunk} is not") as caught:
        anchors.get(blobs, stored.anchor_id)
    assert "run the plan again" in caught.value.hint


def test_a_damaged_object_goes_to_quarantine_and_is_made_again(blobs):
    tree = {"w": noise(600, 1000), "s": np.ones(3)}
    stored = anchors.put(blobs, tree)
    for name in list(blobs.names("")):
        content = bytearray(blobs.objects[name])
        content[60] ^= 1
        blobs.objects[name] = bytes(content)
        with pytest.raises(CorruptObject, match=name):
            anchors.get(blobs, stored.anchor_id)
        assert blobs.size(name) is None
        assert blobs.size(f"quarantine/{name}.0") == len(content)
        assert not anchors.present(blobs, stored.anchor_id, stored.size)
        anchors.put(blobs, tree)
        assert state.equal(anchors.get(blobs, stored.anchor_id), tree)


def test_another_anchor_under_the_name_is_found_out(blobs):
    one, other = (anchors.put(blobs, number).anchor_id for number in (1, 2))
    blobs.objects[layout.anchor_name(one)] = blobs.objects[layout.anchor_name(other)]
    with pytest.raises(CorruptObject, match=f"it is anchor {other}"):
        anchors.get(blobs, one)


def test_another_chunk_under_the_name_is_found_out(blobs):
    stored = anchors.put(blobs, noise(512, 1024))
    assert len(list(blobs.names("chunks/"))) == 2
    one, other = blobs.names("chunks/")
    blobs.objects[one] = blobs.objects[other]
    with pytest.raises(CorruptObject, match=one):
        anchors.get(blobs, stored.anchor_id)


def damages(content: bytes) -> list[bytes]:
    """Every single-bit flip, every truncation, and every dropped or doubled byte."""
    flips = [
        bytes([*content[:at], content[at] ^ 1 << bit, *content[at + 1 :]])
        for at in range(len(content))
        for bit in (0, 7)
    ]
    cuts = [content[:at] for at in range(len(content))]
    shifts = [content[:at] + content[at + 1 :] for at in range(len(content))]
    return flips + cuts + shifts + [content + b"\0", b"\0" + content, content + content]


@pytest.fixture(params=["plain", "compressed", "tensor"])
def small_tree(request: pytest.FixtureRequest) -> dict[str, object]:
    arrays: dict[str, object] = {
        "plain": np.arange(3.0),
        "compressed": np.zeros(2048, "i4"),
        "tensor": torch.ones(2, dtype=torch.bfloat16),
    }
    return {"step": 3, "w": arrays[request.param], "n": [1.5, None, "é"]}


def test_no_damage_of_a_small_object_gives_a_wrong_tree(blobs, small_tree):
    stored = anchors.put(blobs, small_tree)
    name = layout.anchor_name(stored.anchor_id)
    for damaged in damages(blobs.objects[name]):
        blobs.objects = {name: damaged}
        with pytest.raises(CorruptObject):
            anchors.get(blobs, stored.anchor_id)


def test_no_damage_of_a_chunk_gives_a_wrong_tree(blobs):
    for tree in (noise(2, 8_500), np.zeros((2, 40_000), "i8"), np.zeros((2, 35_000), "u1")):
        stored = anchors.put(blobs, tree)
        (name,) = anchors.reach(blobs, stored.anchor_id).chunks
        content = blobs.objects[name]
        for at in [*range(60), *range(60, len(content), 997), len(content) - 1]:
            blobs.objects[name] = bytes([*content[:at], content[at] ^ 16, *content[at + 1 :]])
            with pytest.raises(CorruptObject, match=name):
                anchors.get(blobs, stored.anchor_id)
        for cut in (0, 1, 47, 48, 49, len(content) - 1):
            blobs.objects[name] = content[:cut]
            with pytest.raises(CorruptObject, match=name):
                anchors.get(blobs, stored.anchor_id)


def forged(
    blobs: MemoryBlobs, manifest: object, slots: Sequence[Slot] = (), pieces: Sequence[Buffer] = ()
) -> Callable[[], object]:
    """An object that someone made to be consistent, so that only its claims are wrong."""
    anchor_id, content = layout.pack(canon.encode(manifest), slots, list(pieces))
    blobs.put(layout.anchor_name(anchor_id), content)
    return lambda: anchors.get(blobs, anchor_id)


def entry(dtype: object, shape: object, digests: object) -> list[object]:
    return [1, b"ai0;", [[dtype, shape, digests]]]


FORGED = {
    "no list": 5,
    "format 2": [2, b"N", []],
    "no structure": [1, None, []],
    "no arrays": [1, b"N", None],
    "no entry": [1, b"N", [5]],
    "huge shape": entry("<f8", [1 << 60], b""),
    "impossible shape": entry("<f8", [1 << 70], b""),
    "negative shape": entry("<f8", [-1], b""),
    "bool shape": entry("<f8", [True], bytes(32)),
    "many axes": entry("<f8", [1] * 65, bytes(32)),
    "endless product": entry("<f8", [(1 << 62) - 1] * 64, b""),
    "object dtype": entry("|O8", [1], bytes(32)),
    "evil dtype": entry("os.system", [1], bytes(32)),
    "wrong order": entry(">f8", [1], bytes(32)),
    "odd float": entry("<f3", [1], bytes(32)),
    "huge item": entry("|S9999999", [1], bytes(32)),
    "dtype of a wrong kind": entry(5, [1], bytes(32)),
    "half a digest": entry("<f8", [1], bytes(31)),
    "chunk without slot": entry("<f8", [1], bytes(32)),
    "array unused": [1, b"N", [["<f8", [0], b""]]],
    "array missing": [1, b"ai0;", []],
    "no structure at all": [1, b"", []],
    "deep": [1, b"l1:" * 10000, []],
}


@pytest.mark.parametrize("manifest", FORGED.values(), ids=FORGED.keys())
def test_a_consistent_object_with_wrong_claims_is_one_clear_error(blobs, manifest):
    get = forged(blobs, manifest)
    with pytest.raises(CorruptObject, match="anchors/") as caught:
        get()
    assert "\n" not in str(caught.value)


def test_an_array_that_numpy_can_not_make_is_an_error(blobs):
    with pytest.raises(StoreError, match="no memory for an array of <f8"):
        forged(blobs, entry("<f8", [0, 1 << 61, 1 << 61], b""))()


def slot_of(raw: bytes, place: int, stored: bytes) -> tuple[list[object], list[Slot], list[Buffer]]:
    digest = canon.raw_digest(raw)
    return entry("|u1", [1, len(raw)], digest), [Slot(place, 0, len(stored), canon.raw_digest(stored))], [stored]


def test_a_frame_that_holds_more_than_its_chunk_is_not_unpacked(blobs):
    bomb = numcodecs.Zstd(level=1, checksum=True).encode(bytes(200 * MIB))
    get = forged(blobs, *slot_of(bytes(MIB // 2), Place.ZSTD, bomb[: MIB // 4]))
    huge = b"\x28\xb5\x2f\xfd\xe4" + (1 << 50).to_bytes(8, "little") + bytes(100)
    other = forged(blobs, *slot_of(bytes(4000), Place.ZSTD, huge))
    tracemalloc.start()
    for ask in (get, other):
        with pytest.raises(CorruptObject, match="can't be decoded"):
            ask()
    assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    tracemalloc.stop()


def test_a_frame_of_other_bytes_is_found_out_after_decoding(blobs):
    frame = numcodecs.Zstd(level=1, checksum=True).encode(bytes(4000))
    for raw in (b"\1" * 4000, bytes(3000) + b"\1" * 2000):
        with pytest.raises(CorruptObject, match=r"decoded bytes differ|can't be decoded"):
            forged(blobs, *slot_of(raw, Place.ZSTD, frame))()


@pytest.mark.parametrize("place", [6, 99, 255])
def test_an_unknown_codec_is_refused(blobs, place):
    with pytest.raises(CorruptObject, match="contradicts its manifest"):
        forged(blobs, *slot_of(bytes(4000), place, b"x" * 10))()


def test_room_for_a_large_array_is_made_only_when_its_chunks_are_there(blobs):
    digests = b"".join(canon.raw_digest(bytes([number])) for number in range(200))
    slots = [Slot(Place.SEPARATE, 0, 0, bytes(32))] * 200
    get = forged(blobs, entry("|u1", [200, MIB], digests), slots)
    tracemalloc.start()
    with pytest.raises(AbsentError, match="its chunk"):
        get()
    assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    tracemalloc.stop()


def test_a_recovery_point_comes_back_whole(blobs):
    tree = tree_of_every_kind()
    assert partial.load(blobs, KEY) is None
    partial.save(blobs, KEY, {"old": 1})
    partial.save(blobs, KEY, tree)
    assert list(blobs.names("")) == [f"partial/ab/{KEY}"]
    assert state.equal(partial.load(blobs, KEY), tree)
    partial.remove(blobs, KEY)
    partial.remove(blobs, KEY)
    assert partial.load(blobs, KEY) is None


def test_no_damage_of_a_recovery_point_gives_a_wrong_tree(blobs, small_tree):
    partial.save(blobs, KEY, small_tree)
    name = f"partial/ab/{KEY}"
    for damaged in damages(blobs.objects[name]):
        blobs.objects[name] = damaged
        assert partial.load(blobs, KEY) is None


def test_a_recovery_point_with_chunks_elsewhere_is_none(blobs):
    stored = anchors.put(blobs, noise(600, 1000))
    blobs.objects[f"partial/ab/{KEY}"] = blobs.objects[layout.anchor_name(stored.anchor_id)]
    assert partial.load(blobs, KEY) is None


def test_asking_whether_an_anchor_is_there_imports_no_numpy(python):
    code = (
        "import sys\nfrom dsec.store import layout\nfrom dsec.store.blobs import LocalBlobs\nfrom pathlib import Path\n"
        "assert not layout.present(LocalBlobs(Path('/nonexistent')), 'ab' * 32, 10)\n"
        "print(sorted({'numpy', 'numcodecs', 'torch', 'zarr'} & set(sys.modules)))"
    )
    done = python(code)
    assert done.stdout.strip() == "[]", done.stderr
