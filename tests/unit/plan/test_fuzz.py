"""No plan, however broken, raises anything but PlanError, or takes long."""

from __future__ import annotations

import re
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.errors import PlanError
from dsec.plan.check import check
from dsec.plan.load import load_plan, read

GOOD = [(Path(__file__).parent / "good" / f"{name}.yaml") for name in ("cartpole", "vision", "coupons")]
TEXTS = [path.read_text() for path in GOOD]
WORDS = sorted({word for text in TEXTS for word in re.findall(r"[\w.:\[\]{}*-]+", text)})
SCRAPS = [
    "\t",
    "\n",
    ":",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!x ",
    "'",
    '"',
    "|",
    ">",
    "#",
    "%",
    "${{ ",
    " }}",
    "0",
    "~",
]


def tried(path: Path, text: str) -> None:
    began = time.process_time()
    try:
        plan, document = load_plan(path, text)
        problems = check(plan, document)
    except PlanError as error:
        problems = list(error.problems)
    assert time.process_time() - began < 1
    for problem in problems:
        assert problem.line >= 0 and problem.column >= 0 and "\n" not in problem.message
        assert str(problem)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes(content: bytes) -> None:
    try:
        tried(Path("plan.yaml"), content.decode("utf-8", "surrogateescape"))
    except PlanError:
        raise AssertionError from None


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Path, str]:
    index = draw(st.integers(0, len(TEXTS) - 1))
    text = TEXTS[index]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 30)))
        piece = draw(st.one_of(st.sampled_from(WORDS), st.sampled_from(SCRAPS), st.text(max_size=5)))
        text = text[:at] + piece + text[end:]
    return GOOD[index], text


@settings(max_examples=150, deadline=None)
@given(mutated())
def test_mutated_plans(case: tuple[Path, str]) -> None:
    tried(*case)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2), st.integers(0, 10_000), st.sampled_from(WORDS))
def test_words_in_wrong_places(index: int, which: int, word: str) -> None:
    found = list(re.finditer(r"[\w.:\[\]*-]+", TEXTS[index]))
    here = found[which % len(found)]
    tried(GOOD[index], TEXTS[index][: here.start()] + word + TEXTS[index][here.end() :])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2), st.integers(0, 10_000), JSON)
def test_any_value_in_any_place(index: int, which: int, value: object) -> None:
    import json

    path = GOOD[index]
    tree = json.loads(json.dumps(read(path).tree, default=str))
    places = []
    stack = [tree]
    while stack:
        node = stack.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    node, key = places[which % len(places)]
    node[key] = value
    tried(path, json.dumps(tree))
