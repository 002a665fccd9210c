"""Promise 14: an edit to what a stage's code can reach is noticed; an edit to nothing it can reach is not."""

from __future__ import annotations

import pytest
from projects import SMALL, Project


def test_a_constant_of_a_helper_is_noticed_and_named(done: Project) -> None:
    done.edit("agents/scoring.py", "SPREAD = 1.0", "SPREAD = 0.5")
    told = done.dsec("why", "init.agent@seed=0", done.plan, *SMALL)
    assert "agents/scoring.py:SPREAD" in told.stdout, told.stdout + told.stderr
    made = done.run(*SMALL)
    ran = {n for n, i in done.instances(made["run"]).items() if i["status"] == "ran"}
    assert "init.env@seed=0" not in ran
    assert {"init.agent@seed=0", "train@seed=0#0/learn"} <= ran


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("agents/scoring.py", "SPREAD = 1.0", "SPREAD = 1.0  # a remark"),
        ("agents/scoring.py", '"""How trials are scored."""', '"""How trials are scored, in other words."""'),
        ("agents/scoring.py", "def mean_length", "def nobody_calls(this):\n    return this + 1\n\n\ndef mean_length"),
        ("agents/climber.py", "import numpy as np\n", "import numpy as np\n\n\n"),
    ],
)
def test_a_remark_or_an_unreached_function_is_not(done: Project, file: str, old: str, new: str) -> None:
    done.edit(file, old, new)
    again = done.run(*SMALL)
    assert (again["ran"], again["cluster"]) == (0, False)
