"""State trees: the closed set of values an anchor can hold, their canonical form, and their equality.

A tree is one of these leaves, or holds them: None, bool, int of any size, float (bits kept), str, bytes, list, tuple,
dict with str or int keys, set, frozenset, enum, dataclass, numpy arrays and scalars, numpy generators, torch tensors
and generators, `AnchorRef`, and any object that says ``state_dict()``. Everything else is a `StateError` with its path.

Its form is that of `canon`, with these tags besides; ``text``, ``int``, ``bytes`` and ``value`` are forms of that kind:

====== =====================================================================
tag    what follows
====== =====================================================================
``S``  item count, ``:``, the items (a set; ``Z`` is a frozenset), in the order of their bytes, no two the same
``e``  text (``package.module:Class``), text (name of the member)
``f``  text (class), int (a flag's number)
``c``  text (class), mapping (a dataclass's fields)
``o``  text (class), value (what state_dict() gives)
``n``  text (dtype, little-endian), bytes (a numpy scalar)
``a``  int: number of the array; arrays are numbered in order, a numpy array has its own
``t``  int, text (torch's dtype), text (kind): a tensor; two that share all of one storage have one number
``g``  value with tag ``p`` or ``P``: a numpy Generator
``p``  list of class, state, seed sequence: a numpy bit generator; ``P`` int: the int-th of them once more
``h``  list of state, has_gauss, gauss: a numpy RandomState; ``H`` int: the int-th of them once more
``q``  text (device), bytes (state): a torch Generator; ``Q`` int: the int-th of them once more
``r``  text (anchor id)
``x``  reserved for opaque leaves; refused
====== =====================================================================

What is kept and what is not:

- A dict comes back in canonical order, sorted by the bytes of its keys, whatever its insertion order was.
- Numpy arrays are values: two names of one array come back as two arrays. A memory layout is not kept.
- Tensors and generators have an identity: one that stands in two places comes back as one. Two *different* views of one
  storage come back as two tensors with their own storage. The device of a tensor is placement, and not kept.
- Attributes that a caller adds to tensors, and gradients (``.grad``), are not kept.
"""

from __future__ import annotations

from dsec.core.compare import ABSENT, Difference, differences, equal
from dsec.core.flatten import MAX_VALUES, Flat, flatten
from dsec.core.leaves import AnchorRef, ArraySpec, Named, Tensor, TorchGenerator, by_class
from dsec.core.restore import Resolve, references, unflatten

__all__ = [
    "ABSENT",
    "MAX_VALUES",
    "AnchorRef",
    "ArraySpec",
    "Difference",
    "Flat",
    "Named",
    "Resolve",
    "Tensor",
    "TorchGenerator",
    "by_class",
    "differences",
    "equal",
    "flatten",
    "references",
    "unflatten",
]
