"""What a name of users' code depends on, as one digest and in parts; read from sources, nothing is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsec.code.cache import Cache
from dsec.code.distributions import Distributions, unlisted
from dsec.code.modules import Finder, Source
from dsec.code.parse import Module, opaque, parse
from dsec.code.problem import CodeProblem, closest
from dsec.code.resolve import Found, Reach, Reader
from dsec.code.signature import Signature, read_signature, unknown_signature
from dsec.core import canon
from dsec.core.bodies import RUNTIME_SEMANTICS

__all__ = ["Fingerprint", "Project", "changes"]

_DOMAIN = "dsec/code/1"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that a name's results depend on, as far as code goes."""

    name: str
    """As the plan has it: ``package.module:name``."""
    digest: canon.Digest
    """Of the name, the definitions and the distributions."""
    definitions: Mapping[str, str]
    """``package.module:Qualified.name`` -> digest; statements of a module that always count are ``:<module>``."""
    distributions: Mapping[str, str]
    """Third-party code: distribution -> version, ``absent`` where an import finds nothing."""
    modules: Mapping[str, str]
    """First-party modules that are imported -> digest of the raw file; not in `digest`."""
    files: Mapping[str, str]
    """The same modules -> file, relative to the project."""


class Project:
    """The code of a project, as it was when first looked at: make a new one to see later edits.

    Parameters
    ----------
    root
        The project's folder, which is the first import path of its code.
    cache
        Folder for what was found out, or None.
    """

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root = root.absolute()
        self.finder = Finder(self.root)
        self.distributions = Distributions(cache)
        self._cache = Cache(cache) if cache is not None else None
        self._parsed: dict[str, Module] = {}
        self._contents: dict[str, bytes] = {}
        self._answers: dict[tuple[str, str], Any] = {}

    def fingerprint(self, name: str, *, allow_dynamic: bool = False) -> Fingerprint:
        """Fingerprint of ``package.module:name``, ``gymnasium/<id>`` or ``plugin:<id>``.

        Parameters
        ----------
        allow_dynamic
            Take code that picks other code at run time as it is; for specs and stages that say ``cache.version``.

        Raises
        ------
        CodeProblem
            If there is no such module or name, a file can't be parsed, or what counts can't be told before it runs.
        """
        library, slash, _ = name.partition("/")
        if slash and library.replace("-", "_").isidentifier():
            return self._of_library(name, library)
        kind = "fingerprint-dynamic" if allow_dynamic else "fingerprint"
        answer = self._answer(kind, name)
        if answer is None:
            reader = Reader(self.finder, self._parse)
            made = self._fingerprint(reader, name, allow_dynamic)
            answer = self._keep(kind, name, reader, asdict(made))
        return Fingerprint(**{**answer, "digest": canon.Digest(answer["digest"])})

    def signature(self, name: str) -> Signature:
        """Signature of ``package.module:name``.

        Raises
        ------
        CodeProblem
            As `fingerprint`, code that picks other code apart.
        """
        answer = self._answer("signature", name)
        if answer is None:
            reader = Reader(self.finder, self._parse)
            answer = self._keep("signature", name, reader, self._signature(reader, name).plain())
        source = self.finder.source(answer["module"]) if answer["module"] else None
        return Signature.of(answer, source.path if source and source.path else Path(answer["file"]))

    def module(self, name: str) -> Module | None:
        """A parsed first-party module, None if there is none of that name."""
        source = self.finder.source(name)
        return self._parse(source) if source is not None else None

    def content(self, name: str) -> bytes:
        """Raw source of a first-party module, the same whenever asked; empty for a package without ``__init__``."""
        source = self.finder.source(name)
        if source is None:
            raise CodeProblem("no-module", f"no module {name}", candidates=self._nearest(name))
        return self._content(source)

    # ---- fingerprints ----------------------------------------------------------------------------------

    def _fingerprint(self, reader: Reader, name: str, allow_dynamic: bool) -> Fingerprint:
        module, chain = self._split(name)
        whose = self.finder.whose(module).kind
        reader.module(module)
        if whose == "dsec":
            return _sealed(name, {}, {"dsec": f"semantics {RUNTIME_SEMANTICS}"}, {}, {})
        if whose == "third-party":
            return self._of_others(reader, name, module)
        self._entry(reader, module, chain)
        reach = Reach(reader, self.distributions)
        reach.start(module, chain)
        if reach.dynamic and not allow_dynamic:
            raise _unforeseeable(reach)
        with_files = {key: self.finder.source(key) for key in sorted(reach.modules)}
        files = {key: source.file for key, source in with_files.items() if source and source.path}
        digests = {key: str(reach.modules[key].digest) for key in files}
        return _sealed(name, _definitions(reach), dict(sorted(reach.versions.items())), digests, files)

    def _of_library(self, name: str, library: str) -> Fingerprint:
        installed = self.distributions.named(library)
        if installed is None:
            raise CodeProblem("no-module", f"{name}: {library} is not installed", hint=f"pip install {library}")
        return _sealed(name, {}, {installed.name: installed.version}, {}, {})

    def _of_others(self, reader: Reader, name: str, module: str) -> Fingerprint:
        """Code of a distribution: its version is all that counts."""
        reach = Reach(reader, self.distributions)
        reach.add(module)
        return _sealed(name, {}, dict(sorted(reach.versions.items())), {}, {})

    def _split(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Module and attributes of a name; none of the latter where an id in a registry is named."""
        module, colon, rest = name.partition(":")
        if module == "__main__":
            hint = "put it in a file of the project and name that (in a notebook: %%writefile)"
            raise CodeProblem("main", f"{name} is defined in a script or a notebook cell", hint=hint)
        if not colon or not rest or not all(part.isidentifier() for part in module.split(".")):
            raise CodeProblem("bad-name", f"{name!r} names no code", hint="write package.module:name")
        chain = tuple(rest.split("."))
        return module, chain if all(part.isidentifier() for part in chain) else ()

    def _entry(self, reader: Reader, module: str, chain: tuple[str, ...]) -> Found | None:
        """Where a name leads; an error that helps if it leads nowhere."""
        whose = self.finder.whose(module).kind
        if whose == "python":
            hint = "write a function of your own that calls it"
            raise CodeProblem("not-first-party", f"{module} is part of Python", hint=hint)
        found = reader.module(module)
        if found is None:
            near = self._nearest(module)
            hint = "" if near else f"modules are looked for in {self.root}"
            raise CodeProblem("no-module", f"no module {module}", candidates=near, hint=hint)
        place = reader.find(found, chain)
        missing = ".".join(chain) if place is None else self._unknown_attribute(reader, place)
        if not missing or found.open:
            return place
        known = [unit.name for unit in found.definitions()] + list(found.bound)
        message = f"{module} has no {missing}"
        raise CodeProblem("no-name", message, candidates=closest(missing, known), file=found.file)

    def _unknown_attribute(self, reader: Reader, place: Found) -> str:
        """Qualified name of an attribute that a class is known not to have."""
        if not place.rest or place.module is None or place.unit is None or place.unit.kind != "class":
            return ""
        lineage = list(reader.lineage(place.module, place.unit))
        closed = all(base and base.unit for owner, unit in lineage for base in reader.bases(owner, unit))
        known = any(place.rest[0] in unit.attributes for _, unit in lineage)
        return "" if known or not closed else f"{place.unit.name}.{place.rest[0]}"

    def _nearest(self, module: str) -> tuple[str, ...]:
        """Modules of the project that may have been meant."""
        package, _, name = module.rpartition(".")
        while package and self.finder.source(package) is None:
            package, _, name = package.rpartition(".")
        prefix = f"{package}." if package else ""
        rest = module[len(prefix) + len(name) :]
        return tuple(f"{prefix}{near}{rest}" for near in closest(name, self.finder.children(package)))

    def _signature(self, reader: Reader, name: str) -> Signature:
        module, chain = self._split(name)
        reader.module(module)
        if self.finder.whose(module).kind in ("third-party", "dsec") or not chain:
            return unknown_signature(chain[-1] if chain else name)
        found = self._entry(reader, module, chain)
        return read_signature(reader, found, chain[-1])

    # ---- reading ---------------------------------------------------------------------------------------

    def _parse(self, source: Source) -> Module:
        module = self._parsed.get(source.name)
        if module is None:
            content = self._content(source)
            compiled = source.path is not None and source.path.suffix != ".py"
            read = opaque if compiled else parse
            module = read(source.name, content, file=source.file, is_package=source.is_package)
            self._parsed[source.name] = module
        return module

    def _content(self, source: Source) -> bytes:
        if source.name not in self._contents:
            try:
                self._contents[source.name] = source.path.read_bytes() if source.path else b""
            except OSError as error:
                raise CodeProblem("no-module", f"can't be read: {error.strerror}", file=source.file) from None
        return self._contents[source.name]

    # ---- cache -----------------------------------------------------------------------------------------

    def _answer(self, kind: str, name: str) -> Any:
        """An answer from this process, or one on disk whose sources are all the same."""
        if (kind, name) not in self._answers and self._cache is not None:
            stored = self._cache.get(kind, name)
            if stored is not None and self._still(stored):
                self._answers[kind, name] = stored["answer"]
        return self._answers.get((kind, name))

    def _still(self, stored: Mapping[str, Any]) -> bool:
        try:
            return (
                all(self._same(*entry) for entry in stored["sources"])
                and all(self.finder.source(name) is None for name in stored["missing"])
                and all(self.finder.whose(top).kind == kind for top, kind in stored["tops"])
                and self._versions(stored["tops"]) == stored["versions"]
            )
        except (CodeProblem, KeyError, TypeError, ValueError):
            return False

    def _same(self, name: str, file: str, digest: str) -> bool:
        source = self.finder.source(name)
        return source is not None and source.file == file and canon.blob_digest(self._content(source)) == digest

    def _keep(self, kind: str, name: str, reader: Reader, answer: dict[str, Any]) -> Any:
        self._answers[kind, name] = answer
        if self._cache is not None:
            self._cache.put(kind, name, {"answer": answer, **self._grounds(reader)})
        return answer

    def _grounds(self, reader: Reader) -> dict[str, Any]:
        """What an answer rests on: files, names that led to nothing, and the distributions behind the others."""
        found = {asked: self.finder.source(asked) for asked in sorted(reader.asked)}
        tops = sorted({asked.partition(".")[0] for asked in found})
        owners = [[top, self.finder.whose(top).kind] for top in tops]
        return {
            "sources": [
                [source.name, source.file, canon.blob_digest(self._content(source))]
                for source in found.values()
                if source is not None
            ],
            "missing": [asked for asked, source in found.items() if source is None and self._is_ours(asked)],
            "tops": owners,
            "versions": self._versions(owners),
        }

    def _is_ours(self, name: str) -> bool:
        return self.finder.whose(name).kind == "first-party"

    def _versions(self, owners: list[list[str]]) -> list[list[str]]:
        """Versions behind third-party names; all that a name could stand for."""
        found = []
        for top, kind in owners:
            if kind not in ("third-party", "absent"):
                continue
            installed = self.distributions.of(top)
            place = self.finder.whose(top).package
            found += [[top, one.name, one.version] for one in installed]
            found += [[top, "", unlisted(place)]] if place and not installed else []
        return found


def _sealed(
    name: str,
    definitions: dict[str, str],
    distributions: dict[str, str],
    modules: dict[str, str],
    files: dict[str, str],
) -> Fingerprint:
    value = canon.digest(_DOMAIN, {"name": name, "definitions": definitions, "distributions": distributions})
    return Fingerprint(name, value, definitions, distributions, modules, files)


def _definitions(reach: Reach) -> dict[str, str]:
    """Digests of all that is reached, by name, sorted."""
    parts: dict[str, list[tuple[int, str]]] = {}
    for module, unit in reach.units.values():
        if unit.kind in ("function", "class"):
            keys: tuple[str, ...] = (unit.name,)
        else:
            keys = unit.binds if unit.kind in ("assign", "import") else ()
        for key in keys:
            parts.setdefault(f"{module.name}:{key}", []).append((unit.line, unit.digest))
    found = {key: _together(sorted(digests)) for key, digests in parts.items()}
    for key, target in reach.renamed.items():
        found.setdefault(key, canon.digest("dsec/code-star/1", target))
    for name, module in reach.modules.items():
        statements = list(_statements(reach, module))
        if statements:
            found[f"{name}:<module>"] = canon.digest("dsec/code-module/1", statements)
    return dict(sorted(found.items()))


def _together(digests: list[tuple[int, str]]) -> str:
    """One digest for a name that is bound several times, in order."""
    only = list(dict.fromkeys(digest for _, digest in digests))
    return only[0] if len(only) == 1 else canon.digest("dsec/code-again/1", only)


def _statements(reach: Reach, module: Module) -> Iterator[list[str]]:
    """Statements that always count, and where among them the assignments stand whose place can matter."""
    for unit in module.units:
        if (module.name, id(unit)) not in reach.units:
            continue
        if unit.kind in ("statement", "compiled"):
            yield ["statement", unit.digest]
        elif unit.ordered or id(unit) in reach.kept:
            yield ["name", unit.name]


def _unforeseeable(reach: Reach) -> CodeProblem:
    module, dynamic = min(reach.dynamic, key=lambda pair: (pair[0].file, pair[1].line))
    message = f"{dynamic.what} picks code that can't be told before it runs"
    hint = "name it, or set cache: {version: …} and raise it when that code changes"
    return CodeProblem("dynamic", message, hint=hint, file=module.file, line=dynamic.line)


def changes(old: Fingerprint, new: Fingerprint) -> list[str]:
    """What differs between two fingerprints of a name, in words, sorted: ``helpers/gae.py:LAMBDA changed``."""
    files = {**old.files, **new.files}
    found = []
    for key in sorted({*old.definitions, *new.definitions}):
        before, after = old.definitions.get(key), new.definitions.get(key)
        if before == after:
            continue
        module, _, name = key.partition(":")
        word = "added" if before is None else "removed" if after is None else "changed"
        found.append(f"{files.get(module, module)}:{name} {word}")
    for key in sorted({*old.distributions, *new.distributions}):
        was, now = old.distributions.get(key, "none"), new.distributions.get(key, "none")
        if was != now:
            found.append(f"{key} {was} -> {now}")
    return sorted(found)
