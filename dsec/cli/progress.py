"""How a run is told while it goes on: bars on a terminal, throttled lines elsewhere, events for programs.

All of it is on stderr but the events of ``--json``, which are stdout's. Nothing is drawn, and rich is not imported,
before a call has to run: a run that finds everything in the store stays silent and quick.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from dsec.cli import output
from dsec.cli.tally import Tally

if TYPE_CHECKING:
    from dsec.engine.events import Event, Report

__all__ = ["Drawing", "Lines", "Progress", "display"]

EVERY = 5.0
"""Seconds between two plain lines."""
REDRAW = 0.1
"""Seconds between two updates of a drawing."""
MAX_REMARKS = 20
"""Remarks of one kind that are printed; more of them are only counted."""
MAX_STAGES = 6
"""Stages that a plain line names."""


class Drawing(Protocol):
    """Where progress is drawn."""

    def update(self, tally: Tally, now: float) -> None:
        """Draw the counts of a tally."""

    def say(self, text: str) -> None:
        """Print a line of its own."""

    def close(self) -> None:
        """End the drawing."""


class Lines:
    """Progress where there is no terminal: a line of all counts, seldom enough for a log.

    Parameters
    ----------
    write
        Takes one line.
    every
        Seconds between two lines of counts.
    """

    def __init__(self, write: Callable[[str], None] = output.note, every: float = EVERY) -> None:
        self._write = write
        self._every = every
        self._last: float | None = None

    def update(self, tally: Tally, now: float) -> None:
        """Print the counts, if the last line is old enough."""
        if self._last is None:
            self._last = now
        if now - self._last >= self._every:
            self._last = now
            self._write(_summary(tally, now))

    def say(self, text: str) -> None:
        """Print a line at once."""
        self._write(text)

    def close(self) -> None:
        """Nothing is left to be ended."""


class Progress:
    """Counts events and has them drawn.

    Parameters
    ----------
    draw
        Makes the drawing; called when something has to run, and not before.
    clock
        Monotonic seconds.
    """

    def __init__(self, draw: Callable[[], Drawing], clock: Callable[[], float] = time.monotonic) -> None:
        self.tally = Tally()
        self._draw = draw
        self._clock = clock
        self._drawing: Drawing | None = None
        self._drawn = float("-inf")
        self._remarks: Counter[str] = Counter()

    def report(self, event: Event) -> None:
        """Take note of an event."""
        from dsec.cli import happened

        now = self._clock()
        happened.count(self.tally, event, now)
        if self._drawing is None and happened.begins_work(event):
            self._drawing = self._draw()
        if (text := happened.remark(event)) is not None:
            self._say(type(event).__name__, text)
        if now - self._drawn >= REDRAW:
            self._update(now)

    def close(self) -> None:
        """Draw the last counts and end the drawing."""
        self._update(self._clock())
        if self._drawing is not None:
            self._drawing.close()

    def _say(self, kind: str, text: str) -> None:
        self._remarks[kind] += 1
        if self._drawing is None or self._remarks[kind] > MAX_REMARKS:
            return
        self._drawing.say(text)
        if self._remarks[kind] == MAX_REMARKS:
            self._drawing.say("(more of this kind are counted, but not printed)")

    def _update(self, now: float) -> None:
        if self._drawing is not None:
            self._drawing.update(self.tally, now)
            self._drawn = now


@contextmanager
def display(*, json: bool, quiet: bool) -> Iterator[Report]:
    """Progress for the streams of this process, as the function that `api.run` reports to."""
    progress = Progress(_bars if sys.stderr.isatty() else Lines)
    listeners: list[Report] = [] if quiet else [progress.report]
    if json:
        listeners.append(_print_event)

    def report(event: Event) -> None:
        for listener in listeners:
            listener(event)

    try:
        yield report
    finally:
        progress.close()


def _bars() -> Drawing:
    from dsec.cli.bars import Bars

    return Bars()


def _print_event(event: Event) -> None:
    from dsec.cli import happened

    output.json_line(happened.as_json(event))


def _summary(tally: Tally, now: float) -> str:
    counts = tally.total()
    parts = [f"{counts.ended:,} of {output.counted(counts.total, 'call')}"]
    parts += [f"{counts.hits:,} cached"] if counts.hits else []
    parts += [f"{counts.failed:,} failed"] if counts.failed else []
    parts += [f"{counts.retried:,} retried"] if counts.retried else []
    going = [f"{name} {stage.ended:,}/{stage.total:,}" for name, stage in tally if stage.ended < stage.total]
    more = [f"{len(going) - MAX_STAGES} more"] if len(going) > MAX_STAGES else []
    left = tally.remaining(now, counts)
    ending = f"; about {output.duration(left)} left" if left else ""
    elapsed = output.duration(now - tally.began) if tally.began is not None else "0 s"
    return f"{elapsed}: {', '.join(parts)}; {', '.join([*going[:MAX_STAGES], *more]) or 'done'}{ending}"
