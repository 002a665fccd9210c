"""Tables fit their width, durations and JSON read well."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.cli import output


def test_numbers_stand_right_and_texts_left() -> None:
    text = output.table(("agent", "mean", "n"), [("ppo", 487.25, 20), ("random", 9.1, 5)], limit=80)
    assert text.splitlines() == [
        "agent     mean   n",
        "------  ------  --",
        "ppo     487.25  20",
        "random     9.1   5",
    ]


def test_absent_values_and_flags_have_words() -> None:
    assert output.table(("a", "b"), [(None, True)], limit=80).splitlines()[-1] == "-  yes"


def test_long_texts_are_cut() -> None:
    text = output.table(("name", "note"), [("a", "x" * 200)], limit=40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.endswith("…")


def test_many_columns_go_into_blocks_that_repeat_the_first() -> None:
    names = [f"column_{i}" for i in range(20)]
    text = output.table(names, [tuple(range(20))], limit=80)
    heads = [block.splitlines()[0] for block in text.split("\n\n")]
    assert len(heads) > 1
    assert all(head.startswith("column_0") for head in heads)
    assert all(any(name in head.split() for head in heads) for name in names)


def test_rows_beyond_the_limit_are_counted() -> None:
    text = output.table(("n",), [(i,) for i in range(100)], limit=80, more="dsec show RUN --json")
    assert text.endswith("… and 40 more rows: dsec show RUN --json")


def test_numbers_are_never_cut() -> None:
    rows = [("a" * 70, 123456789012, 1.5, "b" * 70)]
    assert "123456789012" in output.table(("first", "n", "x", "last"), rows, limit=40)


def test_line_breaks_do_not_break_a_row() -> None:
    assert "one two" in output.table(("text",), [("one\n two",)], limit=80)


@given(
    st.lists(
        st.lists(
            st.one_of(st.none(), st.floats(), st.integers(-(2**40), 2**40), st.text(max_size=60)),
            min_size=4,
            max_size=4,
        )
    ),
    st.integers(40, 120),
)
def test_any_table_fits_its_width(rows: list[list[object]], limit: int) -> None:
    text = output.table(("first", "second column", "c", "d"), rows, limit=limit)
    assert all(len(row) <= limit for row in text.split("\n"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.42, "0.4 s"), (42, "42 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")],
)
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_counts_agree_with_their_noun() -> None:
    assert output.counted(1, "call") == "1 call"
    assert output.counted(344400, "call") == "344,400 calls"


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.json_line({"text": "two\nlines, ünicode", "n": 1})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"text": "two\nlines, ünicode", "n": 1}
