from __future__ import annotations

import numpy as np
import pytest

from dsec.core.stage import Edge
from dsec.errors import StageError
from tests.unit.runtime.serial import Serial, out


def scores(run: Serial, *labels: str) -> list[tuple[str, Edge]]:
    found = []
    for number, label in enumerate(labels):
        one = run.made(f"score{number}", "one", config={"value": [float(number), float(number) + 1.0]})
        found.append((label, out(one, "number")))
    return found


def test_rows_are_cells_in_their_order_with_axes_as_columns(bare: Serial) -> None:
    call = bare.made("table", "table", {"scores": scores(bare, "seed=0,lr=0.1", "seed=1,lr=0.1")})
    table = bare.tree(call, "table")
    assert table["columns"] == ["seed", "lr", "mean", "std", "min", "max", "episodes"]
    assert table["rows"] == [[0, "0.1", 0.5, 0.5, 0.0, 1.0, 2], [1, "0.1", 1.5, 0.5, 1.0, 2.0, 2]]
    assert bare.result(call).stats == {"rows": 2}


def test_values_of_axes_are_read_as_people_wrote_them(bare: Serial) -> None:
    call = bare.made("table", "table", {"scores": scores(bare, "name=a%2Cb%3D1", "name=007", "name=-3")})
    assert [row[0] for row in bare.tree(call, "table")["rows"]] == ["a,b=1", "007", -3]


def test_no_axes_give_one_row(bare: Serial) -> None:
    call = bare.made("table", "table", {"scores": scores(bare, "")})
    assert bare.tree(call, "table")["columns"] == ["mean", "std", "min", "max", "episodes"]
    single = bare.made("table", "table", {"scores": scores(bare, "")[0][1]})
    assert bare.tree(single, "table")["rows"] == bare.tree(call, "table")["rows"]


def test_several_gathers_are_told_apart(bare: Serial) -> None:
    given = {"late": scores(bare, "seed=0"), "early": scores(bare, "seed=0", "seed=1")}
    table = bare.tree(bare.made("table", "table", given), "table")
    assert table["columns"][:2] == ["score", "seed"]
    assert [row[:2] for row in table["rows"]] == [["early", 0], ["early", 1], ["late", 0]]


@pytest.mark.parametrize("value", ["text", {"a": 1}, ["x"], []])
def test_what_is_no_score_is_refused(bare: Serial, value: object) -> None:
    one = bare.made("one", "one", config={"value": value})
    with pytest.raises(StageError, match=r"^table: 'scores' holds a "):
        bare.made("table", "table", {"scores": [("", out(one, "number"))]})


def test_plain_numbers_are_scores_of_one(bare: Serial) -> None:
    one = bare.made("one", "one", config={"value": 3})
    table = bare.tree(bare.made("table", "table", {"scores": [("k=1", out(one, "number"))]}), "table")
    assert table["rows"] == [[1, 3.0, 0.0, 3.0, 3.0, 1]]
    assert isinstance(np.float64(1.0), float)
