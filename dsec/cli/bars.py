"""Progress on a terminal: one bar per stage. The one module that draws with rich; imported when a call has to run."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from dsec.cli import output
from dsec.cli.tally import StageTally, Tally

__all__ = ["Bars"]


class Bars:
    """Bars on stderr that follow a tally.

    Parameters
    ----------
    console
        Where to draw; stderr by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[counts]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[remaining]}", table_column=Column(no_wrap=True), style="dim"),
            console=console or Console(stderr=True, highlight=False),
            # The result of the run goes to stdout as it is; only stderr shares the screen with the bars.
            redirect_stdout=False,
            refresh_per_second=4,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def update(self, tally: Tally, now: float) -> None:
        """Draw the counts of a tally."""
        for name, counts in tally:
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = self._progress.add_task(name, counts="", remaining="")
            left = tally.remaining(now, counts)
            self._progress.update(
                task,
                total=counts.total,
                completed=counts.ended,
                counts=_counts(counts),
                remaining=f"about {output.duration(left)} left" if left else "",
            )

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bars as they are and give the terminal back."""
        self._progress.stop()


def _counts(counts: StageTally) -> str:
    parts = [f"{counts.ended:,}/{counts.total:,}"]
    parts += [f"{counts.hits:,} cached"] if counts.hits else []
    parts += [f"{counts.failed:,} failed"] if counts.failed else []
    parts += [f"{counts.skipped:,} skipped"] if counts.skipped else []
    parts += [f"{counts.retried:,} retried"] if counts.retried else []
    return "  ".join(parts)
