"""From a name to the code it reaches: units of first-party modules, and distributions."""

from __future__ import annotations

import builtins
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dsec.code.distributions import Distributions, unlisted
from dsec.code.modules import Finder, Source
from dsec.code.parse import HARMLESS, Module, Unit
from dsec.code.uses import Dynamic, Import, Use
from dsec.core import canon
from dsec.core.bodies import RUNTIME_SEMANTICS

__all__ = ["Found", "Reach", "Reader"]

_QUIET = frozenset({"torch", "numpy", "numba", "jax", "attr", "attrs", "pydantic", "pytest", "typing_extensions"})
"""Third-party packages whose decorators keep no list of what they decorate."""

_LOADERS = frozenset({"importlib.util.spec_from_file_location", "importlib.machinery.SourceFileLoader",
                      "runpy.run_path", "runpy.run_module", "pkgutil.resolve_name", "pydoc.locate"})  # fmt: skip
"""Functions that run code by file or name."""

_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Found:
    """Where a chain of names ends."""

    module: Module | None
    unit: Unit | None
    rest: tuple[str, ...] = ()
    """Attributes that are left."""
    external: str = ""
    """Module that is not first-party."""


class Reader:
    """Parsed modules of a project; what was asked for is noted, so that an answer can be checked later."""

    def __init__(self, finder: Finder, parsed: Callable[[Source], Module]) -> None:
        self.finder = finder
        self.parsed = parsed
        self.asked: dict[str, None] = {}

    def module(self, name: str) -> Module | None:
        """A first-party module; None if there is none of that name."""
        self.asked[name] = None
        source = self.finder.source(name)
        return self.parsed(source) if source is not None else None

    def bindings(self, module: Module, name: str, seen: frozenset[str] = frozenset()) -> list[tuple[Module, Unit]]:
        """Units that give a name to a module, by star imports too."""
        found = [(module, unit) for unit in module.bound.get(name, ())]
        if found or module.name in seen:
            return found
        for unit in reversed(module.units):
            if unit.kind != "star" or unit.target is None or unit.typing:
                continue
            target = self.module(unit.target[0])
            if target is None or not _exports(target, name):
                continue
            found = self.bindings(target, name, seen | {module.name}) or self._submodule(target, name)
            if found:
                return found
        return []

    def _submodule(self, package: Module, name: str) -> list[tuple[Module, Unit]]:
        """The submodule that a star import takes along since the package lists it in ``__all__``."""
        listed = package.is_package and name in (package.exported() or ())
        if not listed or self.module(f"{package.name}.{name}") is None:
            return []
        digest = canon.digest("dsec/code-import/1", [package.name, [name]])
        return [(package, Unit("import", name, (name,), digest, 0, target=(package.name, (name,))))]

    def find(self, module: Module | str, chain: tuple[str, ...], seen: frozenset[object] = frozenset()) -> Found | None:
        """Follow imports from a module along attributes, to a definition, an assignment, or out of the project."""
        here = self.module(module) if isinstance(module, str) else module
        if here is None:
            name = str(module)
            outside = self.finder.whose(name).kind != "first-party"
            return Found(None, None, chain, external=name) if outside else None
        if not chain or (here.name, chain) in seen:
            return Found(here, None) if not chain else None
        seen = seen | {(here.name, chain)}
        for owner, unit in reversed(self.bindings(here, chain[0])):
            if unit.kind != "import" or unit.target is None:
                return Found(owner, unit, chain[1:])
            target, attributes = self.target(owner, unit)
            found = self.find(target, attributes + chain[1:], seen)
            if found is not None:
                return found
        inner = f"{here.name}.{chain[0]}"
        return self.find(inner, chain[1:], seen) if here.is_package and self.module(inner) else None

    def target(self, module: Module, unit: Unit) -> tuple[str, tuple[str, ...]]:
        """Module and attributes that an import names; ``from . import part`` in a package names its module ``part``."""
        name, chain = unit.target or ("", ())
        if name == module.name and len(chain) == 1 and self.module(f"{name}.{chain[0]}"):
            return f"{name}.{chain[0]}", ()
        return name, chain

    def bases(self, module: Module, unit: Unit) -> Iterator[Found | None]:
        """Base classes of a class, None for what is no chain of names or not found."""
        for base in unit.bases:
            yield self.find(module, base) if base and base[0] not in _BUILTINS else None

    def lineage(self, module: Module, unit: Unit) -> Iterator[tuple[Module, Unit]]:
        """A class and its first-party bases, depth first."""
        seen: set[tuple[str, str]] = set()
        stack = [(module, unit)]
        while stack:
            here, one = stack.pop()
            if (here.name, one.name) in seen:
                continue
            seen.add((here.name, one.name))
            yield here, one
            found = [base for base in self.bases(here, one) if base and base.module and base.unit]
            stack += [(base.module, base.unit) for base in reversed(found) if base.module and base.unit]


def _exports(module: Module, name: str) -> bool:
    """Whether a star import takes a name along."""
    listed = module.exported()
    if listed is None:
        # An __all__ that is put together may list anything.
        return "__all__" in module.bound or not name.startswith("_")
    return name in listed


class Reach:
    """Everything that some names reach. Fill it with `start`, then read `units` and `modules`."""

    def __init__(self, reader: Reader, distributions: Distributions) -> None:
        self.reader = reader
        self.distributions = distributions
        self.modules: dict[str, Module] = {}
        self.units: dict[tuple[str, int], tuple[Module, Unit]] = {}
        self.versions: dict[str, str] = {}
        self.dynamic: list[tuple[Module, Dynamic]] = []
        self.renamed: dict[str, str] = {}
        self.kept: set[int] = set()
        self._todo: deque[tuple[Module, Unit]] = deque()
        # Queues, not recursion: a chain of imports may be longer than the stack is deep.
        self._imported: deque[Import] = deque()
        self._values: deque[Module] = deque()
        self._named: dict[str, list[tuple[Module, Unit]]] = {}
        self._wanted: set[str] = set()
        self._followed: set[tuple[str, tuple[str, ...]]] = set()
        self._of_classes: dict[tuple[str, Use], tuple[Module, Use]] = {}

    def start(self, module: str, chain: tuple[str, ...]) -> None:
        """Reach what a chain of attributes of a module reaches, and what the import of the module runs."""
        self.add(module)
        self.follow(module, chain)
        found = self.reader.find(module, chain)
        if found and found.module and found.unit:
            for use in found.unit.returns:
                self._use(found.module, use)
        self._drain()

    # ---- modules ---------------------------------------------------------------------------------------

    def add(self, name: str) -> Module | None:
        """A module that is imported, with the packages around it, and what its import runs."""
        parent = name.rpartition(".")[0]
        if parent and parent not in self.modules:
            self.add(parent)
        if name in self.modules:
            return self.modules[name]
        module = self.reader.module(name)
        if module is None:
            self._outside(name)
            return None
        self.modules[name] = module
        for unit in module.definitions():
            short = unit.name.rpartition(".")[2]
            self._named.setdefault(short, []).append((module, unit))
            if short in self._wanted or (unit.bases and "__subclasses__" in self._wanted):
                self._reach(module, unit)
        for unit in module.units:
            if unit.typing:
                continue
            if unit.kind in ("import", "star"):
                self._imported.extend(unit.imports)
            kept = self._kept(module, unit)
            if kept:
                self.kept.add(id(unit))
            if unit.kind in ("statement", "star", "compiled") or kept:
                self._reach(module, unit)
        return module

    def _outside(self, name: str) -> None:
        whose = self.reader.finder.whose(name)
        if whose.kind == "dsec":
            self.versions["dsec"] = f"semantics {RUNTIME_SEMANTICS}"
        elif whose.kind in ("third-party", "absent"):
            found = self.distributions.of(name)
            for installed in found:
                self.versions[installed.name] = installed.version
            if not found:
                place = whose.package
                self.versions.setdefault(name.partition(".")[0], unlisted(place) if place else "absent")

    def _import(self, item: Import) -> None:
        module = self.add(item.module)
        if module is None or not item.name or not module.is_package:
            return
        for name in (module.exported() or ()) if item.name == "*" else (item.name,):
            self._submodule(module, name)

    def _submodule(self, package: Module, name: str) -> None:
        """A name imported from a package: its module of that name, unless the package has something else for it."""
        inner = f"{package.name}.{name}"
        bound = self.reader.bindings(package, name)
        to_itself = any(self.reader.target(owner, unit)[0] == inner for owner, unit in bound)
        if (not bound or to_itself) and self.reader.module(inner):
            self.add(inner)

    def _kept(self, module: Module, unit: Unit) -> bool:
        """Whether the import alone puts a definition somewhere it may be found: in a registry, among subclasses."""
        if unit.kind not in ("function", "class"):
            return False
        if unit.name == "__getattr__" or any(self._keeps(module, mark) for mark in unit.marks):
            return True
        return unit.kind == "class" and any(
            other is not unit and self._tells(owner, other) for owner, other in self.reader.lineage(module, unit)
        )

    def _tells(self, module: Module, unit: Unit) -> bool:
        """Whether a base class learns of its subclasses."""
        return any(member.name.endswith(".__init_subclass__") for member in unit.members) or any(
            self._keeps(module, mark) for mark in unit.marks
        )

    def _keeps(self, module: Module, mark: tuple[str, ...]) -> bool:
        """Whether a decorator or metaclass may keep what it is given."""
        if not mark or mark[-1] in HARMLESS or mark[0] in ("type", "classmethod", "staticmethod", "property"):
            return not mark
        found = self.reader.find(module, mark)
        if found is None or not found.external:
            return True
        return self.reader.finder.whose(found.external).kind != "python" and found.external.split(".")[0] not in _QUIET

    # ---- units -----------------------------------------------------------------------------------------

    def _reach(self, module: Module, unit: Unit) -> None:
        key = (module.name, id(unit))
        if key not in self.units:
            self.units[key] = (module, unit)
            self._todo.append((module, unit))

    def _drain(self) -> None:
        while self._todo or self._imported or self._values or self._of_classes:
            if self._imported:
                self._import(self._imported.popleft())
            elif self._values:
                self._spread(self._values.popleft())
            elif self._todo:
                self._take(*self._todo.popleft())
            else:
                # Last, when it is known which classes are reached as a whole.
                self._of_class(*self._of_classes.pop(next(iter(self._of_classes))))

    def _take(self, module: Module, unit: Unit) -> None:
        """Reach what a unit refers to."""
        self.add(module.name)
        for member in unit.members:
            self._reach(module, member)
        if not unit.typing:
            self._imported.extend(unit.imports)
        for use in unit.uses:
            self._use(module, use)
        for dynamic in unit.dynamic:
            if not self._fine(module, dynamic):
                self.dynamic.append((module, dynamic))

    def _use(self, module: Module, use: Use) -> None:
        if use.kind == "name":
            self._name(module, use.head, use.chain)
        elif use.kind == "module":
            self.follow(use.head, use.chain)
        elif use.kind == "entry":
            self._entry(use)
        elif use.kind in ("self", "super", "any"):
            self._of_classes[module.name, use] = (module, use)
        elif use.kind == "own":
            self._whole(module)
        elif use.kind == "made":
            if self.reader.bindings(module, use.head):
                self._by_name(use.chain)
        else:
            self._by_name([use.head])

    def _entry(self, use: Use) -> None:
        """Code named in a text: counted where it is the project's, any other text is a text."""
        found = self.reader.find(use.head, use.chain)
        if found is not None and found.module is not None:
            self.add(use.head)
            self.follow(use.head, use.chain)

    def _of_class(self, module: Module, use: Use) -> None:
        """An attribute that a method reads from its instance.

        It is the class's own, and counted with it, where the class is reached. A method that was reached by its name
        alone has an instance of who knows which subclass.
        """
        owner = self._class(module, use.head)
        whole = owner is not None and (module.name, id(owner)) in self.units
        if use.kind == "any":
            if owner is not None and not whole:
                self._reach(module, owner)
            return
        name, *rest = use.chain
        if not whole and owner is not None:
            for here, one in self.reader.lineage(module, owner):
                if name in one.constants:
                    self._reach(here, one)
        if not whole or (use.kind == "self" and not self._has(module, use.head, name)):
            self._by_name([name])
        self._by_name(rest)

    def _class(self, module: Module, qualified: str) -> Unit | None:
        return next((unit for unit in module.definitions() if unit.name == qualified), None)

    def _has(self, module: Module, qualified: str, name: str) -> bool:
        """Whether a class or a first-party base of it gives itself an attribute."""
        owner = self._class(module, qualified)
        if owner is None:
            return False
        return any(name in unit.attributes for _, unit in self.reader.lineage(module, owner))

    def _name(self, module: Module, name: str, chain: tuple[str, ...]) -> None:
        found = self.reader.bindings(module, name)
        for owner, unit in found:
            if owner is not module:
                self.renamed[f"{module.name}:{name}"] = f"{owner.name}:{unit.name}"
            self._arrive(owner, unit, chain)
        if found:
            return
        inner = f"{module.name}.{name}"
        if module.is_package and name not in _BUILTINS and self.reader.module(inner):
            self.follow(inner, chain)
        elif name not in _BUILTINS and not name.startswith("__"):
            self._by_name(chain)

    def follow(self, name: str, chain: tuple[str, ...]) -> None:
        """Reach what a chain of attributes read from a module reaches; without attributes, all of the module."""
        if (name, chain) in self._followed:
            return
        self._followed.add((name, chain))
        module = self.add(name)
        if module is None:
            return
        if not chain or chain[0] == "__dict__":
            self._whole(module)
            return
        found = self.reader.bindings(module, chain[0])
        for owner, unit in found:
            if owner is not module:
                self.renamed[f"{module.name}:{chain[0]}"] = f"{owner.name}:{unit.name}"
            self._arrive(owner, unit, chain[1:])
        if found:
            return
        inner = f"{name}.{chain[0]}"
        if module.is_package and self.reader.module(inner):
            self.follow(inner, chain[1:])
            return
        for owner, unit in self.reader.bindings(module, "__getattr__"):
            self._arrive(owner, unit, ())
        self._by_name(chain)

    def _arrive(self, module: Module, unit: Unit, chain: tuple[str, ...]) -> None:
        """A unit is used, and attributes of what it stands for."""
        self._reach(module, unit)
        if unit.kind == "import" and unit.target is not None:
            if not unit.typing:
                target, attributes = self.reader.target(module, unit)
                self.follow(target, attributes + chain)
        elif unit.kind == "class" and chain and self._has(module, unit.name, chain[0]):
            self._by_name(chain[1:])
        else:
            self._by_name(chain)

    def _whole(self, module: Module) -> None:
        """A module is handed on as a value: anything in it may be read."""
        if (module.name, ("*",)) in self._followed:
            return
        self._followed.add((module.name, ("*",)))
        self._values.append(module)

    def _spread(self, module: Module) -> None:
        for unit in module.units:
            if unit.kind == "star" and unit.target is not None:
                self.follow(unit.target[0], ())
            else:
                self._arrive(module, unit, ())

    def _by_name(self, names: Iterable[str]) -> None:
        """Attributes of who knows what: every definition of that name among the imported modules."""
        for name in names:
            if name in self._wanted:
                continue
            if name == "__subclasses__":
                named = [pair for pairs in self._named.values() for pair in pairs if pair[1].bases]
            elif name.startswith("__") and name.endswith("__"):
                continue
            else:
                named = self._named.get(name, [])
            self._wanted.add(name)
            for module, unit in named:
                self._reach(module, unit)

    def _fine(self, module: Module, dynamic: Dynamic) -> bool:
        """Whether code is picked from nothing that is the project's."""
        if dynamic.builtin and self.reader.bindings(module, dynamic.builtin):
            return True
        if dynamic.loads:
            return not any(self._loads(module, use) for use in dynamic.base)
        return bool(dynamic.base) and all(self._is_external(module, use) for use in dynamic.base)

    def _is_external(self, module: Module, use: Use) -> bool:
        found = self._found(module, use)
        return found is not None and bool(found.external)

    def _loads(self, module: Module, use: Use) -> bool:
        found = self._found(module, use)
        return found is not None and ".".join((found.external, *found.rest)) in _LOADERS

    def _found(self, module: Module, use: Use) -> Found | None:
        if use.kind == "name":
            return self.reader.find(module, (use.head, *use.chain))
        return self.reader.find(use.head, use.chain) if use.kind == "module" else None
