"""What the pages show is true: commands parse, plans are right, Python runs, JSON is JSON, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dsec.cli.main import app
from dsec.plan.check import check
from dsec.plan.load import load_plan

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
COMMAND: Any = typer.main.get_command(app)


def blocks(*languages: str) -> Iterator[Any]:
    for page in PAGES:
        for number, found in enumerate(FENCE.finditer(page.read_text("utf-8"))):
            if found[1] in languages:
                yield pytest.param(found[2], id=f"{page.relative_to(ROOT)}-{number}")


def commands() -> Iterator[Any]:
    """Every ``dsec ...`` of shell blocks, and of `code` in the text that begins with a verb."""
    for page in PAGES:
        text = page.read_text("utf-8")
        shell = "\n".join(found[2] for found in FENCE.finditer(text) if found[1] in ("bash", "console"))
        lines = [part.strip().removeprefix("$ ") for line in shell.splitlines() for part in line.split("&&")]
        inline = re.findall(r"`(dsec [a-z]+[^`\n]*)`", FENCE.sub("", text))
        for command in dict.fromkeys([*lines, *inline]):
            if command.startswith("dsec "):
                yield pytest.param(command, command in lines, id=f"{page.relative_to(ROOT)}-{command}")


def parsed(command: str, whole: bool) -> None:
    """Parse a command as the command line would, and run nothing; what is not whole may lack its argument."""
    _, verb, *words = shlex.split(command, comments=True)
    assert verb in COMMAND.commands, f"there is no verb {verb!r}"
    known = COMMAND.commands[verb]
    needed = [param for param in known.params if param.param_type_name == "argument" and param.required]
    bare = not whole and (not words or words[0].startswith("-"))
    known.make_context(verb, [*words, *("PLACE" for _ in needed if bare)])


@pytest.mark.parametrize(("command", "whole"), list(commands()))
def test_a_command_is_one(command: str, whole: bool) -> None:
    parsed(command, whole)


def test_a_wrong_command_would_be_found() -> None:
    for wrong in ("dsec runn plans/x.yaml", "dsec run plans/x.yaml --worker cpu=2"):
        with pytest.raises(Exception, match=r"no verb|[Nn]o such option"):
            parsed(wrong, whole=True)


@pytest.mark.parametrize("block", list(blocks("yaml")))
def test_a_plan_is_right(block: str) -> None:
    plan, document = load_plan(ROOT / "plans" / "block.yaml", block)
    assert [str(problem) for problem in check(plan, document)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/reference/plan.md"])
def test_the_first_plan_of_a_page_is_the_one_that_ships(page: str) -> None:
    shown = re.search(r"^```yaml[^\n]*\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.S | re.M)
    assert shown is not None
    shipped = ROOT / "plans/cartpole_ppo.yaml"
    assert load_plan(shipped, shown[1])[1].tree == load_plan(shipped)[1].tree


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "page"}
    for found in FENCE.finditer(page.read_text("utf-8")):
        if found[1] == "python":
            exec(compile(found[2], str(page), "exec"), space)


@pytest.mark.parametrize("block", list(blocks("json")))
def test_json_is_json(block: str) -> None:
    json.loads(block)


def slug(heading: str) -> str:
    """What a link to a heading is called, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text("utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", there.read_text("utf-8")), re.M)
            assert anchor in map(slug, headings), target


def test_every_page_of_the_reference_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs/reference").glob("*.md") if f"reference/{page.name}" not in index] == []
    notes = (ROOT / "docs/design/README.md").read_text("utf-8")
    assert [page.name for page in (ROOT / "docs/design").glob("0*.md") if f"({page.name})" not in notes] == []
