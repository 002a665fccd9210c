"""The ``random`` module for one thread: a stage draws from a generator of its own while other threads go on as before.

A worker's other threads (Dask's event loop) draw from ``random`` too, at times that nobody decides. Seeding the
module's one generator would therefore give other numbers each time, and say that a stage drew when it did not.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Drawn", "of_this_thread"]

_FUNCTIONS = tuple(name for name, value in vars(random).items() if getattr(value, "__self__", None) is random._inst)


class Drawn:
    """Whether anything was drawn."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.any = False


_of_thread = threading.local()


@contextmanager
def of_this_thread(seed: int) -> Iterator[Drawn]:
    """Within, functions of ``random`` called by this thread draw from a generator seeded here.

    The functions are replaced once in a process and stay, so that ``from random import choice`` is redirected too
    wherever it is said later; a name imported before that draws from the process's own generator.
    """
    _install()
    before = getattr(_of_thread, "drawn", None)
    _of_thread.drawn = drawn = Drawn(seed)
    try:
        yield drawn
    finally:
        _of_thread.drawn = before


@functools.lru_cache(maxsize=1)
def _install() -> None:
    for name in _FUNCTIONS:
        setattr(random, name, _split(name, getattr(random, name)))


def _split(name: str, others: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(others)
    def function(*arguments: Any, **named: Any) -> Any:
        drawn = getattr(_of_thread, "drawn", None)
        if drawn is None:
            return others(*arguments, **named)
        drawn.any = True
        return getattr(drawn.generator, name)(*arguments, **named)

    return function
