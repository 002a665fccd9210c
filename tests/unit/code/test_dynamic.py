"""Code that picks other code when it runs: refused where it could be the project's, silent everywhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsec.code import CodeProblem, Fingerprint

HEAD = """
import importlib
import operator
import sys
import torch
import numpy as np
import helpers
from helpers import tools
"""
TOOLS = "def one():\n    return 1\ndef two():\n    return 2\nRATE = 3\n"

REFUSED = [
    "return getattr(self, name)()",
    "return getattr(tools, name)()",
    "return getattr(helpers.tools, 'a' + name)()",
    "return getattr(self, f'do_{name}', None)",
    "return importlib.import_module(name)",
    "return __import__(name)",
    "return eval(name)",
    "exec(name)",
    "return globals()[name]",
    "return globals().get(name)",
    "return operator.attrgetter(name)(self)",
    "return operator.methodcaller(name)(self)",
    "return sys.modules[name]",
    "return map(getattr, [self], [name])",
    "from importlib import import_module as load\n        return load(name)",
    "return getattr(*name)",
]

FINE = [
    "return getattr(self, 'one')()",
    "return getattr(self, 'missing', None)",
    "return getattr(torch, name)",
    "return getattr(torch.nn, name)(3)",
    "return getattr(np.random, name)",
    "nn = torch.nn\n        return getattr(nn, name)",
    "import torch.nn.functional as F\n        return getattr(F, name)",
    "return importlib.import_module('helpers.tools').one()",
    "return globals()['HERE']",
    "return self.model.eval()",
    "return hasattr(self, name)",
    "setattr(self, name, 1)",
    "for part in ('one', 'two'):\n            getattr(tools, part)()",
    "return [getattr(tools, part) for part in ['one', 'two']]",
    "part = 'one'\n        return getattr(tools, part)",
    "return getattr(tools, 'one' if name else 'two')",
    "return operator.attrgetter('one')(tools)",
    "return sys.modules[__name__].HERE",
    "eval = str\n        return eval(name)",
]


def files(body: str) -> dict[str, str]:
    agent = f"{HEAD}HERE = 1\nclass Agent:\n    def act(self, name):\n        {body}\n"
    return {"agent.py": agent, "helpers/__init__.py": "", "helpers/tools.py": TOOLS}


@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_be_told_before_it_runs_is_refused(body: str, taken: Callable[..., Fingerprint]) -> None:
    with pytest.raises(CodeProblem) as caught:
        taken(files(body))
    assert caught.value.kind == "dynamic"
    assert (caught.value.file, caught.value.line) == ("agent.py", 12 + body.count("\n") * ("load(name)" not in body))
    assert caught.value.exit_code == 2
    assert "cache" in caught.value.hint
    assert taken(files(body), allow_dynamic=True).digest


@pytest.mark.parametrize("body", FINE)
def test_what_can_be_told_is_taken(body: str, taken: Callable[..., Fingerprint]) -> None:
    assert taken(files(body)).digest


@pytest.mark.parametrize(
    ("body", "reached"),
    [
        ("return getattr(tools, 'one')()", {"one"}),
        ("for part in ('one', 'two'):\n            getattr(tools, part)()", {"one", "two"}),
        ("return getattr(tools, 'one' if name else 'two')", {"one", "two"}),
        ("return importlib.import_module('helpers.tools').one()", {"one", "two", "RATE"}),
        ("return sys.modules['helpers.tools']", {"one", "two", "RATE"}),
        ("return str(tools)", {"one", "two", "RATE"}),
        ("return tools.__dict__[name]", {"one", "two", "RATE"}),
        ("return vars(tools)[name]", {"one", "two", "RATE"}),
        ("return name.one()", {"one"}),
        ("return 'helpers.tools:two'", {"two"}),
        ("return 'cuda:0', 'helpers.tools:three', 'no.module:one'", set()),
        ("return tools.RATE", {"RATE"}),
        ("helpers.tools.RATE = 5", {"RATE"}),
    ],
)
def test_what_is_picked_by_a_text_counts(body: str, reached: set[str], taken: Callable[..., Fingerprint]) -> None:
    found = taken(files(body)).definitions
    assert {name.partition(":")[2] for name in found if name.startswith("helpers.tools:")} == reached


def test_unreached_code_may_do_what_it_likes(taken: Callable[..., Fingerprint]) -> None:
    assert taken({"agent.py": "class Agent:\n    pass\ndef load(name):\n    return eval(name)\n"}).digest


def test_forwarding_what_others_ask_for_is_fine(taken: Callable[..., Fingerprint]) -> None:
    agent = "class Agent:\n    def __getattr__(self, name):\n        return getattr(self.inner, name)\n"
    assert taken({"agent.py": agent}).digest


def test_a_function_of_ones_own_named_as_a_builtin_is_fine(taken: Callable[..., Fingerprint]) -> None:
    agent = "def eval(x):\n    return x\nclass Agent:\n    def act(self, x):\n        return eval(x)\n"
    assert "agent:eval" in taken({"agent.py": agent}).definitions


REGISTRY = """
KNOWN = {}
def register(name):
    def put(item):
        KNOWN[name] = item
        return item
    return put
class Plugin:
    def __init_subclass__(cls):
        KNOWN[cls.__name__] = cls
class Meta(type):
    pass
"""


@pytest.mark.parametrize(
    ("definition", "counts"),
    [
        ("@register('mlp')\ndef item(x):\n    return x\n", True),
        ("class item(Plugin):\n    x = 1\n", True),
        ("class item(metaclass=Meta):\n    x = 1\n", True),
        ("@torch.no_grad()\ndef item(x):\n    return x\n", False),
        ("@functools.cache\ndef item(x):\n    return x\n", False),
        ("@property\ndef item(x):\n    return x\n", False),
        ("class item(abc.ABC):\n    x = 1\n", False),
        ("_ = item = KNOWN.get('x')\n", False),
    ],
)
def test_what_an_import_puts_in_a_registry_counts(
    definition: str, counts: bool, taken: Callable[..., Fingerprint]
) -> None:
    agent = (
        "import abc\nimport functools\nimport torch\nfrom registry import KNOWN, Meta, Plugin, register\n"
        f"{definition}class Agent:\n    def act(self, name):\n        return KNOWN[name](1)\n"
    )
    assert ("agent:item" in taken({"agent.py": agent, "registry.py": REGISTRY}).definitions) is counts


def test_subclasses_asked_for_count(taken: Callable[..., Fingerprint]) -> None:
    agent = "import kinds\nclass Agent:\n    def act(self):\n        return kinds.Kind.__subclasses__()\n"
    kinds = "class Kind:\n    pass\nclass Other(Kind):\n    pass\nclass Alone:\n    pass\n"
    found = taken({"agent.py": agent, "kinds.py": kinds}).definitions
    assert "kinds:Other" in found
    assert "kinds:Alone" not in found
