import numpy as np
import pytest

from dsec.runtime import layouts
from dsec.runtime.layouts import Array, LayoutError, Plain, Record, Row, Scalar

F4 = np.dtype("<f4")

VALUES = [
    3,
    2.5,
    True,
    "text",
    (1, 0.5, False),
    (3, "left"),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    {"image": np.zeros((2, 2), np.uint8), "mission": "go", "inner": {"a": 1}},
    [1, 2, 3],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_side_by_side(value):
    layout = layouts.layout_of(value)
    read = layout.read(value)
    stacked = layout.stack([read, read, read])
    unpacked = layout.unpack([layout.pack(read)] * 3)
    assert repr(unpacked) == repr(stacked)
    assert [repr(item) for item in layout.split(stacked, 3)] == [repr(read)] * 3
    if layout.width is not None:
        assert len(layout.pack(read)) == layout.width


def test_the_order_of_a_dict_does_not_show():
    layout = layouts.layout_of({"b": 1, "a": 2.0})
    assert layout.pack(layout.read({"b": 1, "a": 2.0})) == layout.pack(layout.read({"a": 2.0, "b": 1}))


def test_reading_copies_so_a_reused_buffer_is_safe():
    buffer = np.zeros(3, np.float32)
    read = layouts.layout_of(buffer).read(buffer)
    buffer[:] = 1
    assert read.tolist() == [0, 0, 0]


def test_an_array_takes_what_fits_and_nothing_else():
    layout = Array(F4, (2,))
    assert layout.read([1, 2]).dtype == F4
    assert layout.read(np.zeros(2, np.float64)).dtype == F4
    with pytest.raises(LayoutError, match=r"shape \(3,\), expected float32 of shape \(2,\)"):
        layout.read(np.zeros(3, np.float32))
    with pytest.raises(LayoutError, match="without loss"):
        Array(np.dtype("<i8"), (2,)).read(np.array([0.5, 1.0]))
    assert Array(np.dtype("u1"), (2,)).read(np.array([0, 255])).dtype == np.uint8
    with pytest.raises(LayoutError, match="without loss"):
        Array(np.dtype("u1"), (2,)).read(np.array([0, 256]))


def test_an_array_in_a_foreign_byte_order_is_read_into_ours():
    layout = layouts.layout_of(np.arange(3, dtype=">i4"))
    assert layout.pack(layout.read(np.arange(3, dtype=">i4"))) == np.arange(3, dtype="<i4").tobytes()


def test_not_a_number_is_a_number():
    layout = Array(F4, (2,))
    assert np.isnan(layout.read(np.array([np.nan, 1], np.float32))).tolist() == [True, False]


@pytest.mark.parametrize("value", [2, -1, 2**70, "1", 1.5, None, np.array([1, 2])], ids=repr)
def test_an_int_outside_of_its_range_is_refused(value):
    with pytest.raises(LayoutError):
        Scalar(int, 0, 1).read(value)


def test_numpys_and_torchs_numbers_become_pythons():
    torch = pytest.importorskip("torch")
    layout = Scalar(int, 0, 4)
    for value in (np.int64(3), np.array([3]), np.uint8(3), torch.tensor(3), torch.tensor([3])):
        assert type(layout.read(value)) is int and layout.read(value) == 3


def test_a_batch_of_the_wrong_size_is_refused():
    with pytest.raises(LayoutError, match=r"expected \(3,\): one for each environment"):
        Scalar(int).split(np.array([1, 2]), 3)
    with pytest.raises(LayoutError, match="expected float32 of shape"):
        Array(F4, (2,)).split(np.zeros((2, 2)), 3)
    with pytest.raises(LayoutError, match="one for each environment"):
        Plain().split(["a"], 2)


def test_bounds_of_integers_hold_in_batches_too():
    layout = Array(np.dtype("<i8"), (2,), np.array([0, 0]), np.array([1, 2]))
    assert layout.read(np.array([1, 2])).tolist() == [1, 2]
    with pytest.raises(LayoutError, match="outside"):
        layout.read(np.array([2, 2]))
    with pytest.raises(LayoutError, match="outside"):
        layout.split(np.array([[0, 0], [0, 3]]), 2)


def test_the_place_inside_of_a_value_is_named():
    layout = Record(("at", "to"), (Row((Scalar(int), Scalar(int))), Scalar(float)))
    with pytest.raises(LayoutError, match=r"at \.at: at \[1\]: str 'x', expected int"):
        layout.read({"at": (1, "x"), "to": 0.5})
    with pytest.raises(LayoutError, match="expected a dict with at, to"):
        layout.read({"at": (1, 2)})


def test_what_has_no_bytes_is_refused():
    with pytest.raises(LayoutError, match="neither an array"):
        Plain().read(object())
