"""What an edit does to a fingerprint: a change that can alter results misses, any other hits."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.code import Project, changes

AGENT = '''
"""An agent."""
from __future__ import annotations
import functools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from helpers import gae as advantage
from helpers.gae import discounted as disc
from helpers.nets import *
from .sibling import Base  # noqa
import helpers.deep.er as deeper
if TYPE_CHECKING:
    from helpers.kinds import Batch

SIZE = 64
WIDTH, DEPTH = 2, 3
UNUSED = 1
table = {"a": 1}
ACTIVATION = "tanh"
EPOCHS: int = 4

@dataclass
class Config:
    """Settings."""
    lr: float = 3e-4
    layers: list = field(default_factory=list)
    inner: Inner = None

class Inner:
    depth = 2

class Agent(Base):
    """Acts."""

    clip = 0.2
    """The clip."""

    def __init__(self, config: Config = Config(), *, seed=0):
        """Make it."""
        self.config = config
        self.size = SIZE

    def act(self, obs, eps=0.1):
        # act greedily
        if eps:
            value = advantage.estimate(obs)
        return np.argmax(value) + self._offset() + WIDTH

    def _offset(self):
        from helpers.late import late
        return late(self.size)

    @functools.lru_cache
    def learn(self, batch: Batch):
        total = disc([1, 2])
        for step in range(EPOCHS):
            total += mlp(step) * deeper.depth(ACTIVATION)
        names = []
        names.append(total)
        return batch.normalised(), lambda x: x + table["a"]

def unused(x):
    return UNUSED + x

if __name__ == "__main__":
    print("run as a script")
'''

FILES = {
    "pkg/__init__.py": "",
    "pkg/agent.py": AGENT,
    "pkg/sibling.py": """
        from helpers.mixins import Mixin
        class Root:
            def root(self):
                return 1
        class Base(Mixin, Root):
            limit = 3
            def base(self):
                return self.limit
        class Stranger:
            def strange(self):
                return 2
        """,
    "helpers/__init__.py": """
        import logging
        from . import gae
        logging.getLogger("helpers").setLevel(30)
        """,
    "helpers/gae.py": """
        import math
        LAMBDA = 0.95
        OTHER = 1
        def estimate(obs):
            '''Estimate.'''
            return smooth(obs) * LAMBDA
        def smooth(x, *, window=3):
            return math.sqrt(x) / window
        def discounted(rewards):
            return sum(rewards)
        def append(item):
            return item
        def never():
            return OTHER
        """,
    "helpers/nets.py": """
        __all__ = ["mlp"]
        from helpers.kinds import hidden as _hidden
        def mlp(x):
            return x + _hidden
        def hidden_away(x):
            return x
        """,
    "helpers/kinds.py": """
        hidden = 5
        class Batch:
            def normalised(self):
                return 1
            def raw(self):
                return 2
        try:
            import ujson_not_there as json
        except ImportError:
            json = None
        """,
    "helpers/mixins.py": """
        class Mixin:
            def mixed(self):
                return 7
        """,
    "helpers/late.py": """
        import sys
        RATE = 2
        if sys.version_info >= (3, 0):
            def late(x):
                return x * RATE
        else:
            def late(x):
                return x
        """,
    "helpers/deep/__init__.py": "",
    "helpers/deep/er.py": """
        def depth(name):
            return len(name)
        """,
    "stranger.py": "VALUE = 1\n",
}

A, G = "pkg/agent.py", "helpers/gae.py"

MISSES = [
    ("a constant of a helper", G, "LAMBDA = 0.95", "LAMBDA = 0.9"),
    ("a constant", A, "SIZE = 64", "SIZE = 65"),
    ("one of two names assigned at once", A, "WIDTH, DEPTH = 2, 3", "WIDTH, DEPTH = 4, 3"),
    ("a constant in an f-less string", A, '"tanh"', '"relu"'),
    ("an annotated constant", A, "EPOCHS: int = 4", "EPOCHS: int = 5"),
    ("a value in a lambda's table", A, 'table = {"a": 1}', 'table = {"a": 2}'),
    ("a method", A, "np.argmax(value)", "np.argmin(value)"),
    ("a method that no method calls", "pkg/sibling.py", "return self.limit", "return self.limit + 1"),
    ("a default argument", A, "eps=0.1", "eps=0.2"),
    ("a keyword default of a helper", G, "window=3", "window=4"),
    ("a default object's class", A, "lr: float = 3e-4", "lr: float = 1e-3"),
    ("a default factory", A, "default_factory=list", "default_factory=dict"),
    ("the class of a dataclass field", A, "depth = 2", "depth = 3"),
    ("a new dataclass field", A, "    lr: float", "    gamma: float = 0.9\n    lr: float"),
    ("a class attribute", A, "clip = 0.2", "clip = 0.1"),
    ("a base class", "pkg/sibling.py", "limit = 3", "limit = 4"),
    ("a base class of the base class", "pkg/sibling.py", "return 1", "return 9"),
    ("a mixin in another package", "helpers/mixins.py", "return 7", "return 8"),
    ("the order of bases", "pkg/sibling.py", "Base(Mixin, Root)", "Base(Root, Mixin)"),
    ("a decorator", A, "@functools.lru_cache", "@functools.cache"),
    ("a helper of a helper", G, "math.sqrt(x)", "math.exp(x)"),
    ("a function imported under another name", G, "return sum(rewards)", "return max(rewards)"),
    ("the import of a name", A, "import discounted as disc", "import estimate as disc"),
    ("the import of a library", A, "import numpy as np", "import math as np"),
    ("a function by star import", "helpers/nets.py", "return x + _hidden", "return x - _hidden"),
    ("a constant behind a star import", "helpers/kinds.py", "hidden = 5", "hidden = 6"),
    ("a function imported within a method", "helpers/late.py", "return x * RATE", "return x + RATE"),
    ("a constant in a module imported late", "helpers/late.py", "RATE = 2", "RATE = 3"),
    ("a condition around a function", "helpers/late.py", "(3, 0)", "(3, 1)"),
    ("a function by import a.b as c", "helpers/deep/er.py", "len(name)", "len(name) + 1"),
    ("a statement in an __init__", "helpers/__init__.py", "setLevel(30)", "setLevel(10)"),
    ("a new statement at import", G, "OTHER = 1", "OTHER = 1\nmath.factorial(3)"),
    ("a new statement in an empty __init__", "helpers/deep/__init__.py", "", "print('hello')\n"),
    ("an attribute of who knows what", "helpers/kinds.py", "d(self):\n        return 1", "d(self):\n        return 0"),
    ("an added override", A, "    def act(", "    def mixed(self):\n        return 0\n\n    def act("),
    ("a removed method", A, "    def _offset(self):", "    def _offset2(self):"),
    ("a comparison", A, "if eps:", "if not eps:"),
    ("1 and 1.0", A, "SIZE = 64", "SIZE = 64.0"),
    ("True and 1", A, "clip = 0.2", "clip = True"),
    ("text and bytes", A, '"tanh"', 'b"tanh"'),
    ("a name assigned again", A, "SIZE = 64", "SIZE = 64\nSIZE = 32"),
    ("a constant changed in place", A, "SIZE = 64", "SIZE = 64\nSIZE += 1"),
    ("an item of a table set later", A, 'table = {"a": 1}', 'table = {"a": 1}\ntable["a"] = 2'),
    ("a star import more", A, "deep.er as deeper", "deep.er as deeper\nfrom helpers.star import *"),
    ("the target of from . import", A, "from .sibling import Base", "from .other import Base"),
    ("a nested function", A, "lambda x: x + table", "lambda x: x - table"),
    ("await and generators: yield", "helpers/deep/er.py", "return len(name)", "yield len(name)"),
    ("parentheses that change the order", G, "smooth(obs) * LAMBDA", "smooth(obs * LAMBDA)"),
]  # fmt: skip

HITS = [
    ("nothing", A, "", ""),
    ("a comment", A, "# act greedily", "# act"),
    ("a comment removed", A, "        # act greedily\n", ""),
    ("a module's docstring", A, '"""An agent."""', '"""The agent."""'),
    ("a class's docstring", A, '"""Acts."""', '"""Acts well."""'),
    ("a method's docstring", A, '"""Make it."""', ""),
    ("an attribute's docstring", A, '"""The clip."""', '"""Clip."""'),
    ("a helper's docstring", G, "'''Estimate.'''", ""),
    ("blank lines", A, "\n", "\n\n"),
    ("quotes", A, '"tanh"', "'tanh'"),
    ("parentheses", A, "return UNUSED + x", "return (UNUSED + x)"),
    ("parentheses in a method", A, "np.argmax(value) +", "(np.argmax(value)) +"),
    ("number spelled otherwise", A, "SIZE = 64", "SIZE = 0x40"),
    ("float spelled otherwise", A, "3e-4", "0.0003"),
    ("a trailing comma", A, "disc([1, 2])", "disc([1, 2,])"),
    ("a line break", A, "disc([1, 2])", "disc(\n            [1,\n  2])"),
    ("semicolons", A, "SIZE = 64\nWIDTH", "SIZE = 64; WIDTH"),
    ("an unreached constant", A, "UNUSED = 1", "UNUSED = 2"),
    ("an unreached function", A, "return UNUSED + x", "return UNUSED - x"),
    ("an unreached function of a helper", G, "return OTHER", "return -OTHER"),
    ("a new function", G, "def never", "def fresh():\n    return 3\ndef never"),
    ("a removed function", G, "def never():\n    return OTHER", ""),
    ("a new constant", A, "SIZE = 64", "FRESH = 1\nSIZE = 64"),
    ("a class that is not used", "pkg/sibling.py", "return 2", "return 3"),
    ("a function that a star import leaves out", "helpers/nets.py", "    return x\n", "    return -x\n"),
    ("a method of a class that is not used", "helpers/kinds.py", "return 2", "return 3"),
    ("a module that is not imported", "stranger.py", "VALUE = 1", "VALUE = 2"),
    ("a script's own lines", A, 'print("run as a script")', 'print("go")'),
    ("a method of builtins on a local list", G, "return item", "return [item]"),
    ("two constants change places", A, "SIZE = 64\nWIDTH, DEPTH = 2, 3", "WIDTH, DEPTH = 2, 3\nSIZE = 64"),
    ("two functions change places", G, None, None),
    ("a relative import made absolute", A, "from .sibling import Base", "from pkg.sibling import Base"),
    ("an import that is not used", A, "import os\n", "import os\nimport json\n"),
    ("a pass", A, "    def _offset(self):\n", "    def _offset(self):\n        pass\n"),
    ("an implicit concatenation", A, '"tanh"', '"ta" "nh"'),
    ("a type-checking import", A, "kinds import Batch", "kinds import Batch\n    import os.path"),
    ("Windows line ends", A, "\n", "\r\n"),
    ("a byte order mark", A, '\n"""An agent."""', '\ufeff\n"""An agent."""'),
]  # fmt: skip

OTHERS = {
    "helpers/star.py": "import this_is_missing_too\ndef mlp(x):\n    return -x\n",
    "pkg/other.py": FILES["pkg/sibling.py"],
}


BEFORE = {name: textwrap.dedent(text) for name, text in {**FILES, **OTHERS}.items()}


def edited(file: str, old: str | None, new: str | None) -> dict[str, str]:
    """The project with one file edited; without ``old`` the first function of a file goes to its end."""
    text = BEFORE[file]
    if old is None or new is None:
        start = text.index("def discounted")
        end = text.index("def ", start + 1)
        return {**BEFORE, file: text[:start] + text[end:] + text[start:end]}
    if old not in text:
        raise ValueError(f"{old!r} is not in {file}")
    return {**BEFORE, file: text.replace(old, new) if old else text + new}


@pytest.mark.parametrize(("file", "old", "new"), [row[1:] for row in MISSES], ids=[row[0] for row in MISSES])
def test_an_edit_that_can_alter_results_misses(file: str, old: str, new: str, write: Callable[..., Path]) -> None:
    before = Project(write(BEFORE)).fingerprint("pkg.agent:Agent")
    after = Project(write(edited(file, old, new))).fingerprint("pkg.agent:Agent")
    assert before.digest != after.digest
    assert changes(before, after)


@pytest.mark.parametrize(("file", "old", "new"), [row[1:] for row in HITS], ids=[row[0] for row in HITS])
def test_an_edit_that_can_not_alter_results_hits(file: str, old: str, new: str, write: Callable[..., Path]) -> None:
    before = Project(write(BEFORE)).fingerprint("pkg.agent:Agent")
    after = Project(write(edited(file, old, new))).fingerprint("pkg.agent:Agent")
    assert changes(before, after) == []
    assert before.digest == after.digest
