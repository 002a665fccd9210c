"""Texts of the command line become values, or an error that says what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.cli import arguments
from dsec.errors import UsageError


def test_params_are_yaml_1_2() -> None:
    pairs = ["n=60", "lr=1e-4", "on=on", "seeds=[0, 1]", "name=a=b", "flag=true", "empty="]
    assert arguments.params(pairs) == {
        "n": 60,
        "lr": 1e-4,
        "on": "on",
        "seeds": [0, 1],
        "name": "a=b",
        "flag": True,
        "empty": "",
    }


def test_no_params_are_an_empty_mapping() -> None:
    assert arguments.params(None) == {}


@pytest.mark.parametrize("pairs", [["lr"], ["=1"], ["a=1", "a=2"], ["a=[1"], ["a={b: 1"], ["a=012"]])
def test_wrong_params_are_refused(pairs: list[str]) -> None:
    with pytest.raises(UsageError, match="-p"):
        arguments.params(pairs)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (None, {}),
        ("cpu=2", {"cpu": 2}),
        ("cpu=2,gpu=1", {"cpu": 2, "gpu": 1}),
        ("gpu=1, cpu=4", {"gpu": 1, "cpu": 4}),
        ("cpu=0,gpu=1", {"cpu": 0, "gpu": 1}),
    ],
)
def test_workers_are_counted_by_kind(text: str | None, counts: dict[str, int]) -> None:
    assert arguments.workers(text) == counts


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4", "cpu=4"),
        ("gpus=1", "'gpu'"),
        ("tpu=1", "gpu"),
        ("cpu=two", "cpu=2"),
        ("cpu=-1", "cpu=2"),
        ("cpu", "cpu=2"),
        ("cpu=1,cpu=2", "one"),
        ("cpu=0", "cpu=2"),
        ("", ""),
    ],
)
def test_wrong_workers_are_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        arguments.workers(text)
    assert hint in refused.value.hint


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no store at"):
        arguments.store_of(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
