"""The command line starts quickly: help loads no library but typer."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["dask", "distributed", "torch", "zarr", "numpy", "rich", "sqlalchemy", "networkx", "yaml", "gymnasium"]

PROBE = """
import sys
from dsec.cli.main import main
try:
    main({argv!r})
except SystemExit as ended:
    assert ended.code == 0, ended.code
print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


def loaded(argv: list[str], heavy: list[str]) -> str:
    """Which of the modules a fresh process has loaded after a command, as printed."""
    program = PROBE.format(argv=argv, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stderr.strip()


@pytest.mark.parametrize("argv", [["--help"], []], ids=" ".join)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    assert loaded(argv, [*HEAVY, "pydantic"]) == "[]"


# Newer versions of typer read the words of a verb with pydantic, which a run needs anyway.
@pytest.mark.parametrize("argv", [["run", "--help"], ["version"]], ids=" ".join)
def test_a_verb_that_does_nothing_imports_nothing_heavy(argv: list[str]) -> None:
    assert loaded(argv, HEAVY) == "[]"
