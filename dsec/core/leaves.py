"""What stands in a state tree for values that are more than plain data, and how live ones turn into it.

Restoring runs no code that bytes name: enums, dataclasses and objects come back as `Named` unless the caller passes
their classes (`by_class`), torch tensors and generators as `Tensor` and `TorchGenerator`. Putting such a stand-in
into a tree gives the same bytes as the value it stands for.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dsec.errors import StateError

__all__ = [
    "AnchorRef",
    "ArraySpec",
    "Named",
    "Refused",
    "Tensor",
    "TensorParts",
    "TorchGenerator",
    "array_dtype",
    "by_class",
    "named",
    "render_path",
    "tensor_parts",
    "type_name",
]

MAX_ITEMSIZE = 1 << 20
"""Bytes of one element at most, so that every chunk holds at least one."""

TORCH_DTYPES: Mapping[str, str] = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "uint64": "<u8",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
    "bfloat16": "<u2",
    "float8_e4m3fn": "|u1",
    "float8_e4m3fnuz": "|u1",
    "float8_e5m2": "|u1",
    "float8_e5m2fnuz": "|u1",
    "float8_e8m0fnu": "|u1",
}
"""Torch's dtypes by name -> the numpy dtype that holds their bits."""

Kind = Literal["tensor", "grad", "parameter", "frozen"]
"""``tensor`` and ``grad`` (a leaf with requires_grad), ``parameter`` and ``frozen`` (an nn.Parameter without it)."""

KINDS: frozenset[str] = frozenset({"tensor", "grad", "parameter", "frozen"})

_DTYPE = re.compile(r"[<|][biufcSUmM][0-9]+(?:\[(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_INTEGERS = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")
FIXED = frozenset({*_INTEGERS, "<f2", "<f4", "<f8", "<c8", "<c16"})
"""Dtypes of a fixed size; text and dates come in more."""


@dataclasses.dataclass(frozen=True, slots=True)
class AnchorRef:
    """An anchor in place of its tree."""

    anchor_id: str


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A torch tensor without torch. Two places that hold the same ``array`` object share their storage."""

    array: npt.NDArray[Any]
    """Its elements in C order; ``uint16`` bits for bfloat16, ``uint8`` bits for the float8 types."""
    dtype: str
    """Torch's name of the dtype, for example ``bfloat16``."""
    kind: Kind = "tensor"


@dataclasses.dataclass(frozen=True, slots=True)
class TorchGenerator:
    """A torch.Generator without torch."""

    device: str
    """``cpu`` or ``cuda``, no index."""
    state: bytes
    """What get_state() gives."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array whose chunks were not read."""

    dtype: str
    """Numpy's dtype, or torch's name of it for a tensor."""
    shape: tuple[int, ...]
    number: int = 0
    """Its number in the manifest; two tensors that share their storage have one."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A value whose class is known by name only."""

    kind: Literal["enum", "flag", "dataclass", "object"]
    name: str
    """``package.module:Class``."""
    value: Any
    """Member name of an enum, number of a flag, dict of a dataclass's fields, state_dict() of an object."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Named):
            return NotImplemented
        from dsec.core import state

        return state.equal(self, other)

    def __hash__(self) -> int:
        return hash((self.kind, self.name))


class Refused(Exception):
    """A value that has no place in a tree; collects its path from the inside out.

    Parameters
    ----------
    message
        What it is, starting with its type; "can't be kept in an anchor" follows.
    hint
        What to do.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path: list[str | int] = []

    def error(self) -> StateError:
        """The same as people see it."""
        return StateError(
            f"{self.message} can't be kept in an anchor", hint=self.hint, where=render_path(reversed(self.path))
        )


def render_path(path: Iterable[str | int]) -> str:
    """A path as it would stand in Python: ``agent.memory[3]["fc1.weight"]``; the root is ``$``."""
    text = ""
    for part in path:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}" if text else part
        elif part == "{}":
            text += "{}"
        else:
            text += f'["{part}"]' if isinstance(part, str) else f"[{part}]"
    return text or "$"


def type_name(kind: type) -> str:
    """``redis.client.Redis``, or ``set`` for a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def array_dtype(dtype: str) -> np.dtype[Any] | None:
    """The numpy dtype of a stored name, None if anchors have no such dtype; never evaluates the name."""
    if dtype in FIXED:
        return np.dtype(dtype)
    if not _DTYPE.fullmatch(dtype) or len(dtype) > 12:
        return None
    found = np.dtype(dtype) if dtype[1] in "SU" or dtype[1:3] in ("m8", "M8") else None
    return found if found is not None and found.str == dtype and found.itemsize <= MAX_ITEMSIZE else None


@functools.lru_cache(maxsize=1024)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Little-endian name of a dtype that anchors can hold.

    Raises
    ------
    Refused
        For object, structured, long double and other dtypes.
    """
    name = dtype.newbyteorder("<").str
    if dtype.names is None and dtype.subdtype is None and dtype.metadata is None and array_dtype(name) is not None:
        return name
    hint = "keep one array a field" if dtype.names else "use bool, integers, floats, complex64/128, str or dates"
    raise Refused(f"an array of dtype {dtype}", "keep a list" if dtype.hasobject else hint)


class TensorParts(NamedTuple):
    """A tensor taken apart."""

    array: npt.NDArray[Any]
    dtype: str
    kind: str
    storage: tuple[Any, ...] | None
    """Equal for two tensors over the same elements of one storage; None where sharing means nothing."""


def tensor_parts(value: Any) -> TensorParts | None:
    """Parts of a torch tensor or of a `Tensor`; None for anything else.

    Raises
    ------
    Refused
        For a tensor whose elements can't be kept as they are.
    """
    if type(value) is Tensor:
        return _stand_in_parts(value)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    dtype, held = _torch_dtype(value.dtype)
    if held is None or value.layout is not torch.strided or value.device.type == "meta":
        raise Refused(f"torch.Tensor of dtype {dtype}, {value.layout}, on {value.device}", "keep a dense tensor")
    if value.grad_fn is not None:
        raise Refused("torch.Tensor that is part of a graph of gradients", "call .detach() on it")
    array = _elements(value, held, torch)
    pointer = value.data_ptr()
    seen = (held, value.is_conj(), value.is_neg(), value.shape, value.stride())
    storage = (pointer, value.device, *seen) if pointer else None
    return TensorParts(array, dtype, _tensor_kind(value, torch), storage)


@functools.lru_cache(maxsize=64)
def _torch_dtype(dtype: Any) -> tuple[str, str | None]:
    """Name of a torch dtype, and of the numpy dtype that holds its bits."""
    name = str(dtype).removeprefix("torch.")
    return name, TORCH_DTYPES.get(name)


def _stand_in_parts(value: Tensor) -> TensorParts:
    held = TORCH_DTYPES.get(value.dtype)
    if held is None or type(value.array) is not np.ndarray or value.array.dtype != np.dtype(held):
        raise Refused(f"Tensor of dtype {value.dtype!r}", f"its array must be a numpy.ndarray of {held or 'another'}")
    if value.kind not in KINDS:
        raise Refused(f"Tensor of kind {value.kind!r}", f"use one of {', '.join(sorted(KINDS))}")
    return TensorParts(value.array, value.dtype, value.kind, (id(value.array),))


def _elements(value: Any, held: str, torch: Any) -> npt.NDArray[Any]:
    plain = value.detach()
    if value.is_conj() or value.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if held in ("<u2", "|u1"):
        bits = plain.view(torch.int16 if held == "<u2" else torch.uint8)
        return bits.cpu().numpy().view(held)  # type: ignore[no-any-return]
    return plain.cpu().numpy()  # type: ignore[no-any-return]


def _tensor_kind(value: Any, torch: Any) -> Kind:
    kind = type(value)
    if kind is torch.Tensor:
        return "grad" if value.requires_grad else "tensor"
    if kind is torch.nn.Parameter:
        return "parameter" if value.requires_grad else "frozen"
    raise Refused(f"{type_name(kind)}, a subclass of torch.Tensor,", "keep it as a plain tensor")


def torch_generator(value: Any) -> TorchGenerator | None:
    """The stand-in of a torch.Generator; None for anything else."""
    if type(value) is TorchGenerator:
        return value
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Generator):
        return None
    return TorchGenerator(value.device.type, value.get_state().numpy().tobytes())


def named(value: Any) -> Named | None:
    """The stand-in of an enum, a dataclass, or an object with state_dict(); None for anything else.

    Raises
    ------
    Refused
        If the object can't say its state.
    """
    kind = type(value)
    if kind is Named:
        return value  # type: ignore[no-any-return]
    name = f"{kind.__module__}:{kind.__qualname__}"
    stand_in = None
    if isinstance(value, enum.Flag):
        stand_in = Named("flag", name, value.value)
    elif isinstance(value, enum.Enum):
        stand_in = Named("enum", name, value.name)
    elif isinstance(value, type):
        stand_in = None
    elif callable(getattr(kind, "state_dict", None)):
        stand_in = Named("object", name, _state_dict(value))
    elif dataclasses.is_dataclass(value):
        stand_in = Named("dataclass", name, _fields(value))
    return stand_in


def _state_dict(value: Any) -> Any:
    try:
        return value.state_dict()
    except Exception as error:
        message = f"{type_name(type(value))} whose state_dict() fails ({type(error).__name__}: {error})"
        raise Refused(message, "it must give the object's state without arguments") from error


def _fields(value: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(value)]
    kind = type(value)
    for name in getattr(value, "__dict__", ()):
        if name not in names and not isinstance(getattr(kind, name, None), functools.cached_property):
            message = f"{type_name(kind)} with an attribute {name} that is no field and would be lost"
            raise Refused(message, "declare it as a field, or give the class state_dict()")
    try:
        return {name: getattr(value, name) for name in names}
    except AttributeError as error:
        raise Refused(f"{type_name(kind)} that lacks a field ({error})", "set all fields before it is kept") from error


def by_class(classes: Iterable[type]) -> Callable[[Named], Any]:
    """A resolver that restores enums and dataclasses of these classes, and leaves the rest as `Named`.

    A dataclass is filled field by field; neither ``__init__`` nor ``__post_init__`` runs.

    Examples
    --------
    >>> import enum
    >>> class Color(enum.Enum):
    ...     RED = 1
    >>> by_class([Color])(Named("enum", f"{Color.__module__}:{Color.__qualname__}", "RED"))
    <Color.RED: 1>
    """
    known = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in classes}

    def resolve(stand_in: Named) -> Any:
        kind = known.get(stand_in.name)
        return stand_in if kind is None or stand_in.kind == "object" else _restored(kind, stand_in)

    return resolve


def _restored(kind: Any, stand_in: Named) -> Any:
    if stand_in.kind != "dataclass":
        return _member(kind, stand_in)
    fields = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else None
    if fields is None or set(fields) != set(stand_in.value):
        raise StateError(
            f"the stored {stand_in.name} has the fields {sorted(stand_in.value)}, the class has {sorted(fields or ())}",
            hint="restore it with the class it was stored with, or take the fields from the Named stand-in",
        )
    made = object.__new__(kind)
    for field in fields:
        object.__setattr__(made, field, stand_in.value[field])
    return made


def _member(kind: Any, stand_in: Named) -> Any:
    try:
        return kind(stand_in.value) if stand_in.kind == "flag" else kind[stand_in.value]
    except (KeyError, TypeError, ValueError):
        raise StateError(
            f"{stand_in.name} has no member {stand_in.value!r}", hint="restore it with the class it was stored with"
        ) from None
