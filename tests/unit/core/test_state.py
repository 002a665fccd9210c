from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import inspect
import math
import struct
import sys
from typing import Any

import numpy as np
import pytest
import torch

from dsec.core import canon, state
from dsec.errors import CorruptObject, StateError


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class Pose:
    x: float
    tag: Any = None


@dataclasses.dataclass
class Loose:
    x: int

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.x


class Counter:
    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}


def round_trip(tree: object, **options: Any) -> Any:
    flat = state.flatten(tree)
    return state.unflatten(flat.structure, flat.arrays, **options)


def encoded(tree: object) -> tuple[bytes, list[bytes]]:
    flat = state.flatten(tree)
    return flat.structure, [array.tobytes() for array in flat.arrays]


PLAIN = [
    None,
    True,
    0,
    -1,
    2**200,
    -(2**70),
    0.1,
    -0.0,
    math.inf,
    "",
    "naïve 🐍",
    b"",
    b"\0\xff",
    [],
    (),
    {},
    [1, [2, (3, {"a": None})]],
    {"b": 1, "a": 2, 3: "int key", -4: b""},
    set(),
    {1, "a", b"b", (1, 2), None, frozenset({3})},
    frozenset({2.5}),
]


@pytest.mark.parametrize("tree", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_were(tree):
    back = round_trip(tree)
    assert back == tree
    assert type(back) is type(tree)


@pytest.mark.parametrize("tree", [tree for tree in PLAIN if not isinstance(tree, set | frozenset)], ids=repr)
def test_plain_values_have_the_bytes_of_canon(tree):
    if "{1," not in repr(tree):
        assert state.flatten(tree).structure == canon.encode(tree)


def test_floats_keep_every_bit():
    payload = struct.unpack(">d", bytes.fromhex("7ff800000000beef"))[0]
    back = round_trip([payload, -0.0])
    assert struct.pack(">d", back[0]).hex() == "7ff800000000beef"
    assert math.copysign(1, back[1]) == -1


def test_one_of_each_type_differs_from_its_look_alikes():
    forms = [
        encoded(tree) for tree in (1, 1.0, True, "1", b"1", [1], (1,), {1}, frozenset({1}), np.int64(1), np.array(1))
    ]
    assert len({repr(form) for form in forms}) == len(forms)


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "U3", "S4", "M8[ns]", "m8[s]"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)], ids=str)
def test_arrays_of_every_dtype_and_shape_come_back(dtype, shape):
    array = np.arange(math.prod(shape)).astype("i8").reshape(shape).astype(dtype)
    back = round_trip({"x": array})["x"]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_byte_order_and_layout_of_an_array_leave_no_trace():
    array = np.arange(12, dtype="i4").reshape(3, 4)
    for other in (array.astype(">i4"), np.asfortranarray(array), np.repeat(array, 2, axis=1)[:, ::2]):
        assert encoded(other) == encoded(array)


def test_a_memory_mapped_array_counts_as_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "m", np.float32, "w+", shape=(3,))
    assert encoded(mapped) == encoded(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    "scalar",
    [np.float32(1.5), np.float64("nan"), np.int8(-3), np.bool_(True), np.str_("ab"), np.datetime64("2020-01-01")],
)
def test_numpy_scalars_keep_their_type(scalar):
    back = round_trip(scalar)
    assert type(back) is type(scalar)
    assert back.tobytes() == scalar.tobytes()


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_numpy_generators_go_on_and_spawn_as_the_original(name):
    generator = np.random.Generator(getattr(np.random, name)(7))
    generator.standard_normal(5, dtype=np.float32)
    generator.spawn(1)
    back = round_trip(generator)
    assert encoded(back) == encoded(generator)
    assert (back.random(100) == generator.random(100)).all()
    assert back.spawn(2)[1].random() == generator.spawn(2)[1].random()


def test_generators_without_a_seed_sequence_and_legacy_ones_come_back():
    keyed = np.random.Generator(np.random.Philox(key=2**100))
    legacy = np.random.RandomState(5)
    legacy.normal()
    back = round_trip([keyed, legacy])
    assert back[0].random() == keyed.random()
    assert [back[1].normal() for _ in range(3)] == [legacy.normal() for _ in range(3)]


def test_a_legacy_generator_has_the_same_bytes_in_every_process():
    assert encoded(np.random.RandomState(5)) == encoded(np.random.RandomState(5))


def test_a_generator_in_two_places_stays_one():
    generator = np.random.default_rng(1)
    back = round_trip({"policy": generator, "sampler": generator, "source": generator.bit_generator})
    assert back["policy"].bit_generator is back["sampler"].bit_generator is back["source"]
    apart = {"policy": np.random.default_rng(1), "sampler": np.random.default_rng(1)}
    assert encoded({"policy": generator, "sampler": generator}) != encoded(apart)


TORCH_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
]


@pytest.mark.parametrize("name", [*TORCH_DTYPES, "float8_e4m3fn", "float8_e5m2", "uint16"])
def test_tensors_come_back_as_stand_ins_with_the_same_bits(name):
    tensor = torch.tensor([0.0, 1.0, 2.0]).to(getattr(torch, name))
    back = round_trip(tensor)
    assert (back.dtype, back.kind, back.array.shape) == (name, "tensor", (3,))
    assert back.array.tobytes() == bytes(tensor.view(torch.uint8).numpy()) if name != "bool" else back.array[1]
    assert encoded(back) == encoded(tensor)


def test_kinds_of_tensors_are_kept():
    weight = torch.ones(2)
    tree = {
        "tensor": weight.clone(),
        "grad": weight.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(weight.clone()),
        "frozen": torch.nn.Parameter(weight.clone(), requires_grad=False),
    }
    assert {name: tensor.kind for name, tensor in round_trip(tree).items()} == {name: name for name in tree}


def test_conjugated_and_strided_tensors_have_the_bytes_of_their_values():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert encoded(z.conj()) == encoded(z.conj().resolve_conj())
    assert encoded(z.conj().imag) == encoded(z.conj().imag.resolve_neg())
    w = torch.arange(6.0).reshape(2, 3)
    assert encoded(w.T) == encoded(w.T.contiguous())


def test_tensors_over_all_of_one_storage_stay_shared():
    weight = torch.nn.Parameter(torch.arange(4.0))
    tree = {"encoder": weight, "decoder": weight, "detached": weight.detach(), "other": weight.detach().clone()}
    flat = state.flatten(tree)
    assert len(flat.arrays) == 2
    back = state.unflatten(flat.structure, flat.arrays)
    assert back["encoder"] is back["decoder"]
    assert back["detached"].array is back["encoder"].array
    assert back["other"].array is not back["encoder"].array
    assert encoded(back) == encoded(tree)


def test_a_conjugate_is_not_shared_with_its_original():
    z = torch.tensor([1 + 2j])
    back = round_trip({"z": z, "conjugate": z.conj(), "imag": z.imag, "negated": z.conj().imag})
    assert [back[name].array[0] for name in ("z", "conjugate", "imag", "negated")] == [1 + 2j, 1 - 2j, 2, -2]


def test_different_views_of_one_storage_come_back_apart():
    weight = torch.arange(4.0)
    flat = state.flatten([weight, weight[:2], weight[2:]])
    assert len(flat.arrays) == 3


def test_temporary_tensors_are_never_taken_for_shared():
    class Fresh:
        def state_dict(self):
            return {"w": torch.ones(3).mul(2)}

    assert len(state.flatten([Fresh() for _ in range(20)]).arrays) == 20


def test_modules_and_optimizers_say_their_state():
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(3)).sum().backward()
    optimizer.step()
    back = round_trip({"net": module, "adam": optimizer.state_dict()})
    assert back["net"].name == "torch.nn.modules.linear:Linear"
    assert set(back["net"].value) == {"weight", "bias"}
    assert back["adam"]["param_groups"][0]["betas"] == (0.9, 0.999)
    assert set(back["adam"]["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


def test_torch_generators_come_back_as_stand_ins():
    generator = torch.Generator().manual_seed(3)
    back = round_trip([generator, generator])
    assert back[0] is back[1]
    assert back[0].device == "cpu"
    other = torch.Generator()
    other.set_state(torch.frombuffer(bytearray(back[0].state), dtype=torch.uint8))
    assert torch.rand(3, generator=other).tolist() == torch.rand(3, generator=generator).tolist()


def test_named_values_come_back_by_name_and_with_their_class_when_it_is_passed():
    tree = {"color": Color.BLUE, "mode": Mode.READ | Mode.WRITE, "pose": Pose(1.5, [Color.RED]), "counter": Counter(3)}
    plain = round_trip(tree)
    assert plain["color"] == state.Named("enum", f"{__name__}:Color", "BLUE")
    assert plain["mode"].value == 3
    assert plain["pose"].value["x"] == 1.5
    assert plain["counter"].value == {"count": 3}
    assert encoded(plain) == encoded(tree)
    restored = round_trip(tree, resolve=state.by_class([Color, Mode, Pose, Counter]))
    assert restored["color"] is Color.BLUE
    assert restored["mode"] == Mode.READ | Mode.WRITE
    assert restored["pose"] == Pose(1.5, [Color.RED])
    assert isinstance(restored["counter"], state.Named)


def test_a_dataclass_is_restored_without_running_its_code():
    @dataclasses.dataclass
    class Loud:
        x: int

        def __post_init__(self):
            raise AssertionError("code ran")

    loud = object.__new__(Loud)
    loud.x = 4
    assert round_trip(loud, resolve=state.by_class([Loud])).x == 4


def test_a_class_that_changed_is_an_error():
    changed = dataclasses.make_dataclass("Pose", ["x", "y"])
    changed.__module__ = __name__
    with pytest.raises(StateError, match=r"fields \['tag', 'x'\], the class has \['x', 'y'\]"):
        round_trip(Pose(1.0), resolve=state.by_class([changed]))
    fewer = enum.Enum("Color", ["RED"], module=__name__)
    with pytest.raises(StateError, match="no member 'BLUE'"):
        round_trip(Color.BLUE, resolve=state.by_class([fewer]))


def test_a_cached_property_is_not_state_and_other_extras_are_refused():
    loose = Loose(2)
    assert loose.twice == 4
    assert round_trip(loose).value == {"x": 2}
    loose.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="extra that is no field"):
        state.flatten(loose)


def test_a_set_that_classes_make_smaller_is_no_damage():
    @dataclasses.dataclass(frozen=True)
    class Any:
        x: int

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    flat = state.flatten({state.Named("dataclass", f"{Any.__module__}:{Any.__qualname__}", {"x": x}) for x in (1, 2)})
    with pytest.raises(StateError, match="once restored"):
        state.unflatten(flat.structure, flat.arrays, resolve=state.by_class([Any]))


def test_references_to_anchors_are_leaves():
    flat = state.flatten({"a": state.AnchorRef("11"), "b": [state.AnchorRef("22"), state.AnchorRef("11")]})
    assert state.references(flat.structure, flat.arrays) == ("11", "22")


def test_a_structure_can_be_read_without_arrays():
    tree = {"step": 17, "w": np.ones((2, 3)), "t": torch.ones(2, dtype=torch.bfloat16)}
    flat = state.flatten(tree)
    specs = [state.ArraySpec(array.dtype.str, array.shape, number) for number, array in enumerate(flat.arrays)]
    back = state.unflatten(flat.structure, specs)
    assert back["step"] == 17
    assert back["w"] == state.ArraySpec("<f8", (2, 3), 1)
    assert back["t"] == state.ArraySpec("bfloat16", (2,), 0)


class Redis:
    """Stands for a client of something outside."""


def cycle() -> list[object]:
    items: list[object] = []
    items.append([items])
    return items


def nested(depth: int) -> object:
    tree: object = 1
    for _ in range(depth):
        tree = [tree]
    return tree


Point = collections.namedtuple("Point", "x y")

REFUSED = [
    (
        {"agent": {"memory": [1, 2, 3, {"client": Redis()}]}},
        r"agent\.memory\[3\]\.client: .*Redis can't be kept",
        "leave it out",
    ),
    ({"fc1.weight": [lambda: 1]}, r'\["fc1.weight"\]\[0\]: function', "keep the name"),
    (collections.deque([1]), r"\$: collections.deque", "ring buffer"),
    ({1.5: 2}, r"\$: dict with a key of float", "str or int"),
    ({True: 2}, r"\$: dict with a key of bool", "str or int"),
    ({"a": collections.defaultdict(list)}, "a: collections.defaultdict", "dict"),
    ([Point(1, 2)], r"\[0\]: .*Point", "tuple"),
    (1j, "complex", "complex128"),
    ("\ud800", "surrogate", "bytes"),
    (Redis, r"\$: type", ""),
    (np.array([object()]), "dtype object", "list"),
    (np.zeros(2, [("a", "f4")]), "dtype", "one array a field"),
    (np.zeros(2, np.longdouble), "dtype", ""),
    (np.ma.array([1]), "MaskedArray", "asarray"),
    ({"s": {Redis()}}, r"s\{\}: .*Redis", ""),
    ({torch.ones(1)}, "in a set", "list"),
    ({np.random.default_rng()}, "in a set", "list"),
    ({math.nan, float("nan")}, "same bytes", "list"),
    (torch.ones(2, requires_grad=True) * 2, "gradients", "detach"),
    (torch.ones(2).to_sparse(), "sparse", "dense"),
    (torch.ones(2, device="meta"), "meta", "dense"),
    (torch.Size([1]), "torch.Size", "tuple"),
    ({"w": state.ArraySpec("<f8", (2,))}, "w: ArraySpec", "anchors.get"),
    (cycle(), r"\[0\]\[0\]: list that contains itself", "break the cycle"),
    (nested(101), "nested deeper than 100", "flat"),
    (state.Tensor(np.ones(2), "float32"), "Tensor of dtype", "<f4"),
    (state.Tensor(np.ones(2, "f4"), "float32", "other"), "kind 'other'", ""),  # type: ignore[arg-type]
    (state.Named("lambda", "x", 1), "kind 'lambda'", "enum"),  # type: ignore[arg-type]
    (state.Named("enum", "x", 1), "Named with a int", "str"),
    (state.Named("object", 5, 1), "Named with a int", "str"),  # type: ignore[arg-type]
    (state.AnchorRef(5), "AnchorRef with a int", "str"),  # type: ignore[arg-type]
    (state.TorchGenerator("cpu", "x"), "TorchGenerator with a str", "bytes"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("tree", "message", "hint"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_anything_else_is_refused_with_its_path_and_what_to_do(tree, message, hint):
    with pytest.raises(StateError, match=message) as caught:
        state.flatten(tree)
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)


def test_an_object_whose_state_fails_names_the_reason():
    class Broken:
        def state_dict(self):
            raise KeyError("lost")

    with pytest.raises(StateError, match=r"env: .*Broken whose state_dict\(\) fails \(KeyError: 'lost'\)") as caught:
        state.flatten({"env": Broken()})
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_object_that_gives_itself_ends_in_an_error():
    class Endless:
        def state_dict(self):
            return {"inner": Endless()}

    with pytest.raises(StateError, match="nested deeper"):
        state.flatten(Endless())


def test_a_small_tree_that_explodes_is_refused():
    tree: object = [0] * 1000
    for _ in range(20):
        tree = [tree] * 1000
    with pytest.raises(StateError, match="values"):
        state.flatten(tree)


def test_the_deepest_tree_can_be_written_read_and_compared():
    tree = nested(100)
    assert state.equal(round_trip(tree), tree)


def test_a_stack_that_is_nearly_used_up_is_a_clear_error():
    tree, structure = nested(90), b"l1:" * 90 + b"N"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        with pytest.raises(StateError, match="stack that is left"):
            state.flatten(tree)
        with pytest.raises(StateError, match="thing: nested too deep for the stack that is left"):
            state.unflatten(structure, [], where="thing")
        with pytest.raises(StateError, match="stack that is left"):
            state.equal(tree, tree)
    finally:
        sys.setrecursionlimit(limit)


DIFFERENT = [
    ({"a": 1}, {"a": 2}, "a: 1 vs 2"),
    ({"a": 1}, {"a": 1.0}, "a: 1 vs 1.0"),
    ({"a": 1}, {"a": True}, "a: 1 vs True"),
    ({"a": 0.0}, {"a": -0.0}, "a: 0.0 vs -0.0"),
    ({"a": [1, 2]}, {"a": [1]}, "a[1]: 2 vs (absent)"),
    ({"a": 1}, {"b": 1}, "a: 1 vs (absent)"),
    ([1], (1,), "$: [1] vs (1,)"),
    ({"x": {1}}, {"x": {2}}, "x: {1} vs {2}"),
    ({"w": np.zeros((2, 3))}, {"w": np.eye(2, 3)}, "w[0, 0]: 0.0 vs 1.0"),
    ({"w": np.array(1)}, {"w": np.array(2)}, "w: 1 vs 2"),
    ({"w": np.zeros(2)}, {"w": np.zeros(3)}, "w.shape: (2,) vs (3,)"),
    ({"w": np.zeros(2)}, {"w": np.zeros(2, "f4")}, "w.dtype: '<f8' vs '<f4'"),
    ({"w": np.array([0.0])}, {"w": np.array([-0.0])}, "w[0]: 0.0 vs -0.0"),
    (torch.zeros(2), torch.tensor([0.0, 1.0]), "$[1]: 0.0 vs 1.0"),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "$.dtype: 'float32' vs 'float64'"),
    (torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), "$.kind: 'tensor' vs 'parameter'"),
    (Pose(1.0), Pose(2.0), "x: 1.0 vs 2.0"),
    ({"c": Counter(1)}, {"c": Counter(2)}, "c.count: 1 vs 2"),
    (
        {"r": np.random.default_rng(0).bit_generator},
        {"r": np.random.Generator(np.random.PCG64(1)).bit_generator},
        "r[1]",
    ),
    (state.AnchorRef("aa"), state.AnchorRef("bb"), "$: AnchorRef(anchor_id='aa') vs AnchorRef(anchor_id='bb')"),
]


@pytest.mark.parametrize(("left", "right", "text"), DIFFERENT, ids=[text for _, _, text in DIFFERENT])
def test_the_first_difference_has_path_and_both_values(left, right, text):
    assert str(next(state.differences(left, right))).startswith(text)
    assert not state.equal(left, right)
    assert encoded(left) != encoded(right)


def test_the_enum_member_is_named():
    assert "RED" in str(next(state.differences(Color.RED, Color.BLUE)))


def test_sharing_is_part_of_equality():
    weight = torch.ones(2)
    shared, apart = {"a": weight, "b": weight}, {"a": weight, "b": weight.clone()}
    assert str(next(state.differences(shared, apart))) == "b: 'shared with a' vs 'not shared'"
    assert encoded(shared) != encoded(apart)
    assert state.equal(shared, round_trip(shared))


def test_nan_equals_itself_and_a_live_tree_what_it_comes_back_as():
    generator = np.random.default_rng(0)
    tree = {
        "n": math.nan,
        "a": np.array([math.nan]),
        "g": generator,
        "h": generator,
        "t": torch.ones(2),
        "e": Color.RED,
    }
    tree |= {
        "q": torch.Generator(),
        "s": {Color.RED, 1},
        "l": np.random.RandomState(1),
        "o": collections.OrderedDict(z=1),
    }
    assert list(state.differences(tree, round_trip(tree))) == []


def test_all_differences_come_in_canonical_order():
    left, right = {"b": 1, "a": 1, "long": 1, 2: 1}, {"b": 2, "a": 2, "long": 2, 2: 2}
    assert [found.path for found in state.differences(left, right)] == ["[2]", "a", "b", "long"]


def test_what_can_not_be_kept_can_not_be_compared():
    with pytest.raises(StateError, match=r"a\[0\]: .*Redis"):
        state.equal({"a": [Redis()]}, {"a": [Redis()]})
    with pytest.raises(StateError, match="nested"):
        state.equal(cycle(), cycle())


HOSTILE = {
    "empty": b"",
    "unknown tag": b"?",
    "reserved tag": b"xs1:ab1:b",
    "lying count": b"l99999999:",
    "endless count": b"l" + b"9" * 100,
    "negative count": b"l-1:",
    "leading zero": b"l01:N",
    "not minimal": b"i0ff;",
    "upper case": b"iFF;",
    "underscore": b"i1_0;",
    "no end of an integer": b"i1",
    "rest": b"NN",
    "half a double": b"d1234",
    "not UTF-8": b"s1:\xff",
    "unsorted keys": b"m2:s1:bNs1:aN",
    "key twice": b"m2:s1:aNs1:aN",
    "bool key": b"m1:TN",
    "unsorted set": b"S2:i2;i1;",
    "element twice": b"S2:i1;i1;",
    "equal elements": b"S2:d\x3f\xf0\0\0\0\0\0\0i1;",
    "unhashable element": b"S1:l0:",
    "array that is not there": b"ai0;",
    "array number that is no int": b"aN",
    "tensor of an unknown dtype": b"ti0;s2:xxs6:tensor",
    "scalar of a wrong size": b"ns3:<f8b1:a",
    "scalar of an evil dtype": b"ns1:Ob8:12345678",
    "scalar of a long dtype": b"ns9:<U9999999b0:",
    "generator over nothing": b"gN",
    "generator out of turn": b"Pi0;",
    "generator of another class": b"pl3:s2:osm0:N",
    "generator without state": b"pl3:s5:PCG64m0:N",
    "nested": b"l1:" * 100_000 + b"N",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_bytes_that_are_no_structure_are_one_clear_error(content):
    with pytest.raises(CorruptObject, match="thing: not in canonical form at byte"):
        state.unflatten(content, [], where="thing")


def test_arrays_that_nothing_uses_are_an_error():
    with pytest.raises(CorruptObject, match="0 of 1 arrays"):
        state.unflatten(b"N", [np.ones(1)])


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("MT19937", "pos", 625), ("Philox", "buffer_pos", 5), ("PCG64", "has_uint32", 2), ("PCG64", "uinteger", 2**32)],
)
def test_a_generator_state_that_numpy_would_read_past_its_end_is_refused(name, field, value):
    from dsec.core import generators

    parts = generators.bit_generator_parts(getattr(np.random, name)(1))
    (parts[1]["state"] if field in parts[1]["state"] else parts[1])[field] = value
    with pytest.raises(CorruptObject, match="no state of a generator"):
        state.unflatten(b"p" + canon.encode(parts), [])
