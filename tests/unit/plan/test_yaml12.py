"""Scalars are those of YAML 1.2, and files that would hurt are refused quickly."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from dsec.errors import PlanError
from dsec.plan.locate import Sources
from dsec.plan.yaml12 import compose, decode


def value_of(content: str | bytes) -> object:
    sources = Sources()
    raw = content.encode() if isinstance(content, str) else content
    return compose(decode(raw, "p.yaml", sources), "p.yaml", sources).value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"), ("no", "no"), ("Yes", "Yes"), ("true", True), ("FALSE", False), ("null", None), ("~", None),
        ("1e-4", 1e-4), ("1.5E+3", 1500.0), (".5", 0.5), ("1.", 1.0), ("-.5e1", -5.0), ("+3", 3), ("-0", 0),
        ("1:30", "1:30"), ("2020-01-01", "2020-01-01"), ("1_000", "1_000"), ("0o14", 12), ("0x1F", 31), ("0b1", "0b1"),
        ("0.0.1", "0.0.1"), ("=", "="), ("!!str 012", "012"), ("! 12", "12"), ("'12'", "12"), ("!!float 3", 3.0),
        ("!!int 3", 3), ("1e", "1e"), ("--1", "--1"), ("0", 0), ("0.5", 0.5), ("00.5", 0.5),
    ],
)  # fmt: skip
def test_scalars(text: str, value: object) -> None:
    found = value_of(f"a: {text}")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)  # type: ignore[index]


def test_an_alias_is_the_same_value() -> None:
    assert value_of("a: &x {b: [1]}\nc: *x\n&k d: *k\n") == {"a": {"b": [1]}, "c": {"b": [1]}, "d": "d"}


def test_a_byte_order_mark_and_crlf_are_fine() -> None:
    assert value_of(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join('*' + before for _ in range(9))}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"a: \xff", "not-utf8"),
        (b"\xff\xfea\x00:\x00", "not-utf8"),
        (b"a: \x00", "yaml-syntax"),
        (b"a: \x1b[31m", "yaml-syntax"),
        (b"x" * (1 << 20) + b"y", "too-large"),
        (b"", "empty-file"),
        (b"# nothing\n", "empty-file"),
        (b"--- \n...\n", "wrong"),
        (BOMB.encode(), "too-many-nodes"),
        (b"- a\n" * 200_000, "too-many-nodes"),
        (b"- - - - a\n" * 100_000, "too-many-nodes"),
        (b"".join(b"k%d: 1\n" % number for number in range(70_000)), "too-many-nodes"),
        (b"- ${{ 1 }}\n" * 90_000, "too-many-nodes"),
        (b"[" * 1_000_000, "too-deep"),
        (b"[\n" * 500_000, "too-deep"),
        (b"- " * 500_000, "too-deep"),
        (b"{a: " * 250_000, "too-deep"),
        (b"? " * 500_000, "bad-key"),
        (b"&a [*a]", "bad-alias"),
        (b"a: *b", "bad-alias"),
        (b"a: &x b\n*x : 3\n", "bad-key"),
        (b"a: " + b"9" * 1_000_000, "bad-number"),
        (b"a: 1\n" * 100_000, "duplicate-key"),
        (b"!<tag:" + b"x" * 1_000_000 + b"> a", "unknown-tag"),
        (b"%YAML 3.0\n---\na: 1\n", "yaml-syntax"),
        (b"a: |\n\tb\n", "yaml-syntax"),
        (b"a: !!int x\n", "wrong-type"),
        (b"a: !!map [1]\n", "unknown-tag"),
    ],
    ids=range(28),
)
def test_hostile_files_are_refused_within_a_second_and_256_mib(content: bytes, code: str) -> None:
    if code == "wrong":
        assert value_of(content) is None
        return
    for _ in range(3):  # a busy machine may slow down one of them
        began = time.process_time()
        with pytest.raises(PlanError) as caught:
            value_of(content)
        took = time.process_time() - began
        if took < 1:
            break
    assert took < 1
    assert code in {problem.code for problem in caught.value.problems}
    assert len(caught.value.problems) <= 21
    assert len(str(caught.value)) < 20_000
    assert all(line.isprintable() for line in str(caught.value).splitlines())


def test_memory_stays_small() -> None:
    tracemalloc.start()
    with pytest.raises(PlanError):
        value_of("- a\n" * 200_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 << 20


def test_twenty_problems_are_shown_and_the_rest_counted() -> None:
    with pytest.raises(PlanError) as caught:
        value_of("".join(f"k{number}: 0{number}\n" for number in range(10, 40)))
    assert len(caught.value.problems) == 21
    assert str(caught.value).endswith("and 10 more\n  put these right first")
