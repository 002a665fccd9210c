"""Recovery points: one record for each action_key, replaced as the call goes on and removed after its commit.

A record is an anchor's object with all its chunks inside, so that it is whole or damaged, never torn between objects.
Where they were cut never shows in a result; a damaged one is worth as much as none.
"""

from __future__ import annotations

from typing import Any

from dsec.core.stage import ActionKey
from dsec.errors import AbsentError, CorruptObject
from dsec.store import anchors
from dsec.store.blobs import BlobStore

__all__ = ["load", "remove", "save"]


def save(blobs: BlobStore, action_key: ActionKey, tree: object) -> None:
    """Keep ``tree`` as the last recovery point of a call.

    Raises
    ------
    StateError
        If the tree holds something that is no leaf; names its path.
    StoreError
        If it can't be written.
    """
    blobs.replace(_name(action_key), anchors.pack_whole(tree))


def load(blobs: BlobStore, action_key: ActionKey) -> Any:
    """The last recovery point of a call; None if there is none that is whole."""
    name = _name(action_key)
    try:
        return anchors.unpack_whole(blobs.get(name), name)
    except (AbsentError, CorruptObject):
        return None


def remove(blobs: BlobStore, action_key: ActionKey) -> None:
    """Drop the recovery point of a call; no error if there is none."""
    blobs.remove(_name(action_key))


def _name(action_key: ActionKey) -> str:
    return f"partial/{action_key[:2]}/{action_key}"
