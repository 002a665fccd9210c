"""Durations, sizes and step ranges."""

from __future__ import annotations

import pytest

from dsec.plan.locate import Fault
from dsec.plan.units import Steps, seconds, size, steps


@pytest.mark.parametrize(
    ("text", "value"), [("200ms", 0.2), ("2s", 2), ("1.5 s", 1.5), ("5min", 300), ("1h", 3600), (3, 3), (0.5, 0.5)]
)
def test_seconds(text: object, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("4GiB", 4 << 30), ("512MiB", 512 << 20), ("1GB", 10**9), (7, 7)])
def test_size(text: object, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize(
    "text", ["", "s", "2", "-2s", "2 sec", "1:30", "1e3s", "9" * 40 + "s", -1, True, None, [], 1e300]
)
def test_wrong_seconds(text: object) -> None:
    if text == "2":
        assert seconds(text) == 2
        return
    with pytest.raises(Fault):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("4G", "GiB"), ("4gb", "GB"), ("4GIB", "GiB"), ("1.5B", ""), ("4 tons", ""), (0.5, "")]
)
def test_wrong_size(text: object, hint: str) -> None:
    with pytest.raises(Fault) as caught:
        size(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "found"),
    [("0-100", Steps(0, 100)), ("501-", Steps(501)), ("7 - 7", Steps(7, 7)), (1024, Steps(count=1024))],
)
def test_steps(text: object, found: Steps) -> None:
    assert steps(text) == found
    assert steps(found) is found


@pytest.mark.parametrize(
    "text", ["", "-", "-5", "5-3", "a-b", "1-2-3", "1.5-2", "1024", 0, -1, 1.5, True, None, "0x1-2"]
)
def test_wrong_steps(text: object) -> None:
    with pytest.raises(Fault):
        steps(text)
