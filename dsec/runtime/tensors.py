"""Between trees as the store gives them and trees as users' code takes them: torch's tensors and generators.

Tensors are copied into memory of torch's own, so that their alignment, on which some kernels' bits depend, is the same
in every process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dsec.core import canon, leaves, seeds
from dsec.core.leaves import Named, Tensor, TorchGenerator

__all__ = ["averaged", "copied", "generator", "is_module", "module_internals", "restored", "set_state"]

Replace = Callable[[Any], Any]
"""Gives what stands in place of a value, or the value itself."""


def restored(tree: Any, replace: Replace | None = None, *, unwrap: bool = True) -> Any:
    """A tree with torch's tensors and generators in place of their stand-ins, enums and dataclasses made again.

    Parameters
    ----------
    tree
        As `dsec.store.anchors.get` gives it; it is not used afterwards.
    replace
        Called for each leaf first; what it gives instead of the leaf is taken as it is.
    unwrap
        Whether an object that said ``state_dict()`` comes back as what that gave, or as a `Named` around it; in trees
        of agents always the latter.
    """
    return _Restore(replace, unwrap).value(tree)


class _Restore:
    """One pass over a tree; what was one object stays one."""

    def __init__(self, replace: Replace | None, unwrap: bool) -> None:
        self.replace = replace
        self.unwrap = unwrap
        self.made: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        if type(value) is dict:
            return self.mapping(value)
        if type(value) in (list, tuple):
            return type(value)(self.value(item) for item in value)
        if self.replace is not None and (other := self.replace(value)) is not value:
            return other
        if type(value) in (Tensor, TorchGenerator):
            if id(value) not in self.made:
                self.made[id(value)] = _tensor(value) if type(value) is Tensor else _generator(value)
            return self.made[id(value)]
        if type(value) is Named:
            return self.named(value)
        return value

    def mapping(self, value: dict[Any, Any]) -> dict[Any, Any]:
        """A dict; in an agent's tree objects stay marked, since it decides itself what becomes of them."""
        before = self.unwrap
        self.unwrap = before and value.get("kind") != "agent"
        made = {key: self.value(item) for key, item in value.items()}
        self.unwrap = before
        return made

    def named(self, value: Named) -> Any:
        """An object's state, or an enum or dataclass."""
        inner = self.value(value.value)
        if value.kind == "object":
            return inner if self.unwrap else Named(value.kind, value.name, inner)
        return _named(Named(value.kind, value.name, inner))


def _tensor(value: Tensor) -> torch.Tensor:
    made = torch.tensor(value.array)
    if str(made.dtype) != f"torch.{value.dtype}":
        made = made.view(getattr(torch, value.dtype))
    if value.kind in ("parameter", "frozen"):
        return torch.nn.Parameter(made, requires_grad=value.kind == "parameter")
    return made.requires_grad_() if value.kind == "grad" else made


def _generator(value: TorchGenerator) -> torch.Generator:
    made = torch.Generator(value.device)
    made.set_state(torch.tensor(np.frombuffer(value.state, np.uint8)))
    return made


def _named(value: Named) -> Any:
    """An enum or dataclass whose module is imported already; nothing is imported for the sake of stored bytes."""
    module, _, path = value.name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return leaves.by_class([found])(value) if isinstance(found, type) else value


def generator(root: seeds.Root, path: str, device: str = "cpu") -> torch.Generator:
    """A fresh generator of torch at the start of a stream."""
    made = torch.Generator(device)
    made.manual_seed(int(canon.digest("dsec/torch-stream/1", [root, path])[:16], 16) >> 1)
    return made


def set_state(live: torch.Generator, saved: TorchGenerator | torch.Generator) -> None:
    """Put a live generator where a saved one was."""
    state = saved.state if isinstance(saved, TorchGenerator) else saved.get_state().numpy().tobytes()
    live.set_state(torch.tensor(np.frombuffer(state, np.uint8)))


def is_module(value: object) -> bool:
    """Whether it is a torch.nn.Module that says its state the way modules do, parameters and buffers alone."""
    return isinstance(value, torch.nn.Module) and type(value).state_dict is torch.nn.Module.state_dict


def module_internals() -> frozenset[str]:
    """Attributes by which a module keeps its parts: its state_dict covers them."""
    return frozenset(vars(torch.nn.Module())) - {"training"}


def copied(current: Any, saved: Any) -> bool:
    """Copy a saved tensor into the current one, if they are alike, so that whoever holds the current one sees it."""
    if not isinstance(current, torch.Tensor) or not isinstance(saved, torch.Tensor):
        return False
    if current.shape != saved.shape or current.dtype != saved.dtype or current.requires_grad != saved.requires_grad:
        return False
    with torch.no_grad():
        current.copy_(saved)
    return True


def averaged(values: list[Any]) -> Any:
    """The mean of tensors of one shape and floating dtype, added up in float64 in their order; None for others."""
    first = values[0]
    if not all(isinstance(value, torch.Tensor) for value in values) or not first.is_floating_point():
        return None
    if any(value.shape != first.shape or value.dtype != first.dtype for value in values):
        return None
    with torch.no_grad():
        total = torch.zeros(first.shape, dtype=torch.float64)
        for value in values:
            total += value.to(torch.float64)
        mean = (total / len(values)).to(first.dtype)
    if isinstance(first, torch.nn.Parameter):
        return torch.nn.Parameter(mean, requires_grad=first.requires_grad)
    return mean.requires_grad_(first.requires_grad)
