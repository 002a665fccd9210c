"""A store: its directory, its format, and small JSON objects that carry their own digest.

A sealed object is ``{"digest":"<64 hex>","body":<JSON>}``. The digest covers the name and the bytes of the body, so a
torn, damaged or misdirected object is never taken for another.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.core import canon
from dsec.core.stage import Recipe
from dsec.errors import AbsentError, CorruptObject, StateError, StoreError
from dsec.store.blobs import BlobStore, Durability, LocalBlobs

__all__ = [
    "FORMAT",
    "Store",
    "get_json",
    "get_recipe",
    "open_store",
    "put_json",
    "put_new_json",
    "put_recipe",
    "replace_json",
    "seal",
    "set_aside",
    "unseal",
]

FORMAT = 1
"""Number of the format this DSec writes, and the only one it reads."""

_FORMAT_FILE = "format.json"
_HEAD = b'{"digest":"'
_MIDDLE = b'","body":'
_BODY = len(_HEAD) + 64 + len(_MIDDLE)


@dataclass(frozen=True, slots=True)
class Store:
    """An open store."""

    path: Path
    """Its directory, absolute."""
    store_id: str
    """32 hexadecimal characters drawn when it was made; in Dask's keys, in no key of a result."""
    blobs: BlobStore

    @property
    def catalog(self) -> Path:
        """Where the index over the objects lies; it can be deleted and rebuilt."""
        return self.path / "catalog.db"


def open_store(path: Path | str, *, create: bool = True, durability: Durability = "group") -> Store:
    """Open a store, and make it where there is none.

    Raises
    ------
    StoreError
        If there is none and ``create`` is False, if its format is unknown or unreadable, or if objects lie there
        without a format.
    """
    root = Path(path).absolute()
    blobs = _directory(root, durability, create)
    try:
        raw = blobs.get(_FORMAT_FILE)
    except AbsentError:
        if not create:
            raise StoreError("there is no store", where=str(root), hint="`dsec run` makes one; check --store") from None
        raw = _begin(root, blobs)
    return Store(root, _store_id(raw, root), blobs)


def put_json(store: Store, name: str, value: object) -> None:
    """Write a sealed object whose name follows from its content; see `BlobStore.put`."""
    store.blobs.put(name, [seal(name, value)])


def put_new_json(store: Store, name: str, value: object) -> bool:
    """Write a sealed object unless the name is taken; False if it is."""
    return store.blobs.put_new(name, [seal(name, value)])


def replace_json(store: Store, name: str, value: object) -> None:
    """Write a sealed object whatever is there."""
    store.blobs.replace(name, [seal(name, value)])


def get_json(store: Store, name: str) -> Any:
    """The value of a sealed object.

    Raises
    ------
    AbsentError
        If there is none.
    CorruptObject
        If it is damaged; it is then in quarantine, so that writing it again repairs it.
    """
    try:
        return unseal(name, store.blobs.get(name))
    except CorruptObject:
        set_aside(store.blobs, name)
        raise


def set_aside(blobs: BlobStore, name: str) -> None:
    """Quarantine a damaged object, if the store can be written at all; what is damaged is said either way."""
    with contextlib.suppress(StoreError):
        blobs.quarantine(name)


def seal(name: str, value: object) -> bytes:
    """Bytes of a value under its own digest, filed under ``name``."""
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return b"".join((_HEAD, _sealed_digest(name, body), _MIDDLE, body, b"}"))


def unseal(name: str, raw: bytes) -> Any:
    """The value that `seal` put there.

    Raises
    ------
    CorruptObject
        If the bytes are torn, damaged, or belong under another name.
    """
    body = raw[_BODY:-1]
    if raw != b"".join((_HEAD, _sealed_digest(name, body), _MIDDLE, body, b"}")):
        raise CorruptObject(f"{name} is damaged: its bytes differ from its digest")
    return json.loads(body)


def put_recipe(store: Store, recipe: Recipe) -> canon.Digest:
    """Store what all calls of a stage in a lane share; returns the digest that names it.

    Raises
    ------
    StateError
        If it would come back as something else, for example because ``with`` holds a tuple or a key that is no text.
    """
    digest = recipe.digest()
    value = recipe.to_json()
    if Recipe.from_json(json.loads(json.dumps(value))).digest() != digest:
        raise StateError("`with` holds what JSON can't keep", where=recipe.uses, hint="use lists and text keys")
    put_json(store, _recipe_name(digest), value)
    return digest


@functools.lru_cache(maxsize=1024)
def get_recipe(store: Store, digest: canon.Digest) -> Recipe:
    """The recipe of a digest, kept in memory for the calls that follow.

    Raises
    ------
    AbsentError
        If the store has none.
    CorruptObject
        If it is damaged; it is then in quarantine.
    """
    name = _recipe_name(digest)
    recipe = Recipe.from_json(get_json(store, name))
    if recipe.digest() != digest:
        raise CorruptObject(f"{name} holds another recipe", hint="another version of DSec wrote it")
    return recipe


def _recipe_name(digest: canon.Digest) -> str:
    return f"code/{digest[:2]}/{digest}"


def _sealed_digest(name: str, body: bytes) -> bytes:
    return canon.digest("dsec/sealed/1", [name, body]).encode()


def _directory(root: Path, durability: Durability, create: bool) -> LocalBlobs:
    try:
        if create:
            root.mkdir(parents=True, exist_ok=True)
        elif root.exists() and not root.is_dir():
            raise NotADirectoryError
    except (FileExistsError, NotADirectoryError):
        raise StoreError("a store is a directory, and this is a file", where=str(root)) from None
    except OSError as error:
        raise StoreError(f"can't make the store: {error.strerror}", where=str(root)) from error
    return LocalBlobs(root, durability)


def _begin(root: Path, blobs: LocalBlobs) -> bytes:
    """Give an empty directory its format; whoever is second takes the first one's."""
    if any((root / kind).exists() for kind in ("anchors", "chunks", "actions")):
        hint = "restore format.json from a backup, or move the directory away"
        raise StoreError("objects lie here, but format.json is missing", where=str(root), hint=hint)
    made = {"format": FORMAT, "digest": "blake3-256", "store_id": os.urandom(16).hex()}
    blobs.put_new(_FORMAT_FILE, [json.dumps(made, indent=1).encode() + b"\n"])
    if blobs.durability == "strict":
        blobs.sync()  # the directories above it may be new, too
    return blobs.get(_FORMAT_FILE)


def _store_id(raw: bytes, root: Path) -> str:
    try:
        found = json.loads(raw)
        number, store_id = found["format"], found["store_id"]
    except (ValueError, KeyError, TypeError):
        raise StoreError("format.json is not that of a store", where=str(root), hint="check --store") from None
    if number != FORMAT or not isinstance(store_id, str):
        hint = "open it with the DSec that wrote it, or choose another --store"
        raise StoreError(f"the store has format {number!r}, this DSec reads {FORMAT}", where=str(root), hint=hint)
    return store_id
