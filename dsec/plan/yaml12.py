"""YAML 1.2 core on PyYAML's C parser: nodes that know their places, bounded in size and depth.

PyYAML's own loaders speak YAML 1.1 (``on`` is true, ``1:30`` is 90, ``1e-4`` is text) and let a small file
grow without end through aliases. Here events become nodes in one loop without recursion; a file that breaks a
rule is refused with its places, all of them that can be told apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from dsec.errors import Problem
from dsec.plan import values
from dsec.plan.locate import Sources, Span, did_you_mean, refuse, shown

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_EXPRESSIONS", "MAX_NODES", "Node", "compose", "decode"]

MAX_BYTES = 1 << 20
"""Bytes of a file."""
MAX_DEPTH = 32
"""Collections inside one another."""
MAX_NODES = 100_000
"""Keys and values, aliases counted as often as they are used."""
MAX_EXPRESSIONS = 2_000
"""Texts with ``${{`` in one file."""
_MAX_NUMBER = 100
_MANY = 50


@dataclass(slots=True)
class Node:
    """A value and its place."""

    span: Span
    value: Any = None
    """Plain value; of a collection the dict or list of its children's values, shared with aliases."""
    items: dict[str, Node] | list[Node] | None = None
    """Children of a collection."""
    keys: dict[str, Span] | None = None
    """Places of a mapping's keys."""
    size: int = 1
    """Nodes in it, itself counted."""
    height: int = 0
    """Collections inside one another in it, itself counted."""
    fault: Problem | None = None
    """Why an expression in it can't be read."""

    def child(self, part: str | int) -> Node | None:
        """The child at a key or an index, or None."""
        if isinstance(self.items, dict):
            return self.items.get(part) if isinstance(part, str) else None
        if isinstance(self.items, list) and isinstance(part, int) and 0 <= part < len(self.items):
            return self.items[part]
        return None


def decode(raw: bytes, file: str, sources: Sources) -> str:
    """Text of a file.

    Raises
    ------
    PlanError
        If the file is too large, not UTF-8, or has characters that YAML doesn't allow.
    """
    if len(raw) > MAX_BYTES:
        raise refuse([sources.problem(Span(file, 0, 0), "too-large", f"more than {MAX_BYTES} bytes", "split the plan")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        sources.add(file, raw.decode("utf-8-sig", "replace"))
        line, column = _line_column(raw[: error.start].decode("utf-8-sig", "replace"))
        message = f"byte {error.start} ({raw[error.start]:#04x}) is not UTF-8"
        raise refuse(
            [sources.problem(Span(file, line, column), "not-utf8", message, "save the file as UTF-8")]
        ) from None
    sources.add(file, text)
    wrong = _UNPRINTABLE.search(text)
    if wrong:
        message = f"the character {ord(wrong[0]):#06x} can't stand in a plan"
        span = Span(file, *_line_column(text[: wrong.start()]))
        raise refuse([sources.problem(span, "yaml-syntax", message, "remove it, or write it as an escape in quotes")])
    return text


_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def _line_column(before: str) -> tuple[int, int]:
    lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", before)
    return len(lines), len(lines[-1]) + 1


def compose(text: str, file: str, sources: Sources) -> Node:
    """The root node of a text that holds one document.

    Raises
    ------
    PlanError
        With every problem that was found.
    """
    return _Composer(file, sources).run(text)


class _Stop(Exception):
    """Reading can't go on behind the last problem."""


@dataclass(slots=True)
class _Open:
    """A collection whose end was not met yet."""

    node: Node
    anchor: str | None
    key: str | None = None
    """Key whose value comes next."""
    at_key: bool = True
    """Whether the next node of a mapping is a key."""


class _Composer:
    def __init__(self, file: str, sources: Sources) -> None:
        self.file = file
        self.sources = sources
        self.problems: list[Problem] = []
        self.open: list[_Open] = []
        self.anchors: dict[str, Node] = {}
        self.root: Node | None = None
        self.nodes = 0
        self.expressions = 0

    def run(self, text: str) -> Node:
        try:
            for event in _events(text):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            self._syntax(error)
        except yaml.YAMLError as error:
            self._problem(Span(self.file, 0, 0), "yaml-syntax", str(error).split("\n")[0])
        except _Stop:
            pass
        if not self.problems and self.root is None:
            self._problem(Span(self.file, 1, 1), "empty-file", "the file is empty", "a plan begins with 'dsec: 1'")
        if self.problems or self.root is None:
            raise refuse(self.problems)
        return self.root

    def _take(self, event: Event) -> None:
        if isinstance(event, ScalarEvent):
            self._scalar(event)
        elif isinstance(event, AliasEvent):
            self._alias(event)
        elif isinstance(event, MappingStartEvent | SequenceStartEvent):
            self._begin(event)
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            self._end()
        elif isinstance(event, DocumentStartEvent) and self.root is not None:
            self._stop(self._span(event), "several-documents", "a second document begins here", "one file, one plan")

    def _scalar(self, event: ScalarEvent) -> None:
        span = self._span(event)
        if self._expects_key():
            self._key(event, span)
            return
        node = Node(span, self._plain(event, span))
        if isinstance(node.value, str) and values.is_expression(node.value):
            self._expression(node)
        self._add(node, event.anchor)

    def _plain(self, event: ScalarEvent, span: Span) -> object:
        tag = event.tag
        if tag is None and event.implicit[0]:
            return self._number(event.value, span)
        if tag in (None, "!", _CORE + "str"):
            return event.value
        if tag not in _SCALAR_TAGS:
            self._tag(str(tag), span)
            return None
        value = self._number(event.value, span)
        if not isinstance(value, _SCALAR_TAGS[tag]) or (isinstance(value, bool) and tag != _CORE + "bool"):
            self._problem(span, "wrong-type", f"{shown(event.value)} is not of its type !!{tag.removeprefix(_CORE)}")
        return float(value) if tag == _CORE + "float" and isinstance(value, int) else value

    def _number(self, text: str, span: Span) -> object:
        """The value of a plain scalar."""
        if text in _WORDS:
            return _WORDS[text]
        if not text or text[0] not in "+-.0123456789":
            return text
        if len(text) > _MAX_NUMBER:
            if _DIGITS.fullmatch(text):
                self._problem(span, "bad-number", f"a number of more than {_MAX_NUMBER} characters")
            return text
        if _INT.fullmatch(text):
            return self._integer(text, span)
        if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            return self._finite(text, span)
        return int(text, 0) if _OTHER_BASE.fullmatch(text) else text

    def _integer(self, text: str, span: Span) -> int:
        digits = text.lstrip("+-")
        if len(digits) > 1 and digits[0] == "0":
            octal = f"0o{digits.lstrip('0')}, or " if re.fullmatch("0+[1-7][0-7]*", digits) else ""
            hint = f"write {octal}{digits.lstrip('0') or '0'}, or put it in quotes"
            self._problem(span, "bad-number", f"{text} may mean an octal or a decimal number", hint)
        return int(text)

    def _finite(self, text: str, span: Span) -> float:
        value = math.nan if _NOT_FINITE.fullmatch(text) else float(text)
        if not math.isfinite(value):
            self._problem(span, "bad-number", f"{text} is not a finite number", "write a number, or put it in quotes")
        return value

    def _expression(self, node: Node) -> None:
        self.expressions += 1
        if self.expressions > MAX_EXPRESSIONS:
            self._stop(node.span, "too-many-nodes", f"more than {MAX_EXPRESSIONS} expressions", "split the plan")
        try:
            node.value = values.parse(node.value, node.span)
        except values.ExprError as error:
            node.fault = self.sources.problem(node.span, error.code, error.message, error.hint)

    def _alias(self, event: AliasEvent) -> None:
        span = self._span(event)
        name = event.anchor or ""
        if self._expects_key():
            self._stop(span, "bad-key", "an alias can't be a key", "write the key")
        target = self.anchors.get(name)
        if target is None:
            inside = any(held.anchor == name for held in self.open)
            message = f"*{name[:60]} stands inside itself" if inside else f"no anchor &{name[:60]} before this"
            self._stop(span, "bad-alias", message, "" if inside else did_you_mean(name, self.anchors))
        if len(self.open) + target.height > MAX_DEPTH:
            self._stop(span, "too-deep", f"nested deeper than {MAX_DEPTH} through *{name[:60]}")
        self._add(target, None, span)

    def _begin(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        span = self._span(event)
        mapping = isinstance(event, MappingStartEvent)
        if self._expects_key():
            self._stop(span, "bad-key", f"{'a mapping' if mapping else 'a list'} can't be a key", "keys are text")
        if len(self.open) >= MAX_DEPTH:
            self._stop(span, "too-deep", f"nested deeper than {MAX_DEPTH}", "a plan needs fewer levels")
        if event.tag not in (None, "!", _CORE + ("map" if mapping else "seq")):
            self._tag(event.tag, span)
        self._count(span)
        node = Node(span, {}, {}, {}) if mapping else Node(span, [], [])
        self.open.append(_Open(node, event.anchor))
        if event.anchor:
            self.anchors.pop(event.anchor, None)

    def _end(self) -> None:
        held = self.open.pop()
        held.node.height += 1
        self._add(held.node, held.anchor)

    def _expects_key(self) -> bool:
        return bool(self.open) and isinstance(self.open[-1].node.items, dict) and self.open[-1].at_key

    def _key(self, event: ScalarEvent, span: Span) -> None:
        holder = self.open[-1]
        key = event.value
        self._count(span)
        if event.tag not in (None, "!", _CORE + "str"):
            self._tag(event.tag, span)
        elif event.implicit[0] and not isinstance(self._number(key, span), str):
            what = "an empty key" if not key else f"the key {shown(key).strip(chr(39))} is not text"
            self._problem(span, "bad-key", what, "put it in quotes" if key else "write the key")
        elif key == "<<" and event.implicit[0]:
            hint = "use an alias for a whole value, or 'defaults' for what all stages share"
            self._problem(span, "bad-key", "YAML 1.2 has no merge key '<<'", hint)
        keys = holder.node.keys
        if keys is not None and key in keys:
            first = keys[key]
            message = f"the key {shown(key)} stands here again; first at line {first.line}"
            self._problem(span, "duplicate-key", message, "keep one of them")
        if event.anchor:
            self.anchors[event.anchor] = Node(span, key)
        holder.key, holder.at_key = key, False
        if keys is not None:
            keys.setdefault(key, span)

    def _add(self, node: Node, anchor: str | None, alias: Span | None = None) -> None:
        """Put a finished node where it belongs."""
        if node.items is None or alias:
            self._count(alias or node.span, node.size)
        if anchor:
            self.anchors[anchor] = node
        if not self.open:
            self.root = node
            return
        holder = self.open[-1]
        parent = holder.node
        parent.size += node.size
        parent.height = max(parent.height, node.height)
        parent.fault = parent.fault or node.fault
        if isinstance(parent.items, list):
            parent.items.append(node)
            parent.value.append(node.value)
        elif parent.items is not None and holder.key is not None:
            parent.items.setdefault(holder.key, node)
            parent.value.setdefault(holder.key, node.value)
            holder.at_key = True
            parent.size += 1

    def _count(self, span: Span, many: int = 1) -> None:
        self.nodes += many
        if self.nodes > MAX_NODES:
            hint = "an alias counts as often as it is used" if self.anchors else "split the plan, or use a matrix"
            self._stop(span, "too-many-nodes", f"more than {MAX_NODES} keys and values", hint)

    def _span(self, event: Event) -> Span:
        start, end = event.start_mark, event.end_mark
        if start is None or end is None:
            return Span(self.file, 0, 0)
        width = end.column - start.column if end.line == start.line else 1
        return Span(self.file, start.line + 1, start.column + 1, max(1, width))

    def _tag(self, tag: str, span: Span) -> None:
        name = tag.replace(_CORE, "!!")
        self._problem(span, "unknown-tag", f"the tag {shown(name)[1:-1]} is not known here", "plans hold plain values")

    def _syntax(self, error: yaml.MarkedYAMLError) -> None:
        context, found = error.context or "", str(error.problem or "not YAML")
        block = "block" in context or error.context_mark is None
        mark = error.problem_mark if block else error.context_mark
        message, hint = _said(context, found)
        mark_span = Span(self.file, 1, 1) if mark is None else self._inside(mark.line + 1, mark.column + 1)
        if not block and error.problem_mark is not None and error.problem_mark.line != mark_span.line - 1:
            message += f" (noticed at line {error.problem_mark.line + 1})"
        code = "too-deep" if "maximum nesting depth" in found else "yaml-syntax"
        self._problem(mark_span, code, message, hint)

    def _inside(self, line: int, column: int) -> Span:
        """A place in the text; the end of the file counts as behind its last line that has something."""
        lines = self.sources.lines[self.file]
        if line >= len(lines) and not (lines and line == len(lines) and lines[-1].strip()):
            last = max((number for number, text in enumerate(lines, 1) if text.strip()), default=1)
            return Span(self.file, last, len(lines[last - 1]) + 1)
        return Span(self.file, line, column)

    def _problem(self, span: Span, code: str, message: str, hint: str = "") -> None:
        self.problems.append(self.sources.problem(span, code, message, hint))
        if len(self.problems) > _MANY:
            raise _Stop

    def _stop(self, span: Span, code: str, message: str, hint: str = "") -> NoReturn:
        self._problem(span, code, message, hint)
        raise _Stop


def _events(text: str) -> Iterator[Event]:
    events: Iterator[Event] = yaml.parse(text, Loader=_LOADER)
    return events


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, tuple[type, ...]] = {
    _CORE + "int": (int,),
    _CORE + "float": (float, int),
    _CORE + "bool": (bool,),
    _CORE + "null": (type(None),),
}
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_DIGITS = re.compile("[-+.0-9eE]+")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF|nan|NaN|NAN)")
_INT = re.compile("[-+]?[0-9]+")
_OTHER_BASE = re.compile("0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

_SAID = (
    (
        "cannot start any token",
        "a tab or a reserved character stands here",
        "indent with spaces; quote @ ` % at the start",
    ),
    ("could not find expected ':'", "a key without ':'", "write 'key: value', and look at the line above"),
    ("mapping values are not allowed", "a ':' can't stand here", "put the value in quotes, or begin a new line"),
    ("unexpected end of stream", "a quoted text is not closed", "close the quote"),
    ("did not find expected ',' or ']'", "a list in [ ] is not closed here", "close it with ], or put a comma"),
    ("did not find expected ',' or '}'", "a mapping in { } is not closed here", "close it with }, or put a comma"),
    ("did not find expected key", "this line doesn't fit the mapping it stands in", "look at the indentation"),
    ("did not find expected '-' indicator", "this line doesn't fit the list it stands in", "look at the indentation"),
    ("did not find expected node content", "a value is missing here", "write the value"),
    ("undefined tag handle", "a tag that is not known here", "plans hold plain values"),
    (
        "unknown escape character",
        "an unknown escape in double quotes",
        r"write \\ for a backslash, or use single quotes",
    ),
)


def _said(context: str, found: str) -> tuple[str, str]:
    for words, message, hint in _SAID:
        if words in found:
            return message, hint
    return f"{found}{f' ({context})' if context else ''}", ""
