"""Tags of anchors, as objects, so that a lost catalog loses none.

A tag record is a sealed object ``tags/<aa>/<anchor id>.<digest of the record>``; writing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dsec.core import canon
from dsec.core.stage import AnchorId
from dsec.errors import CorruptObject
from dsec.store import root
from dsec.store.blobs import BlobStore
from dsec.store.root import Store

__all__ = ["Tagged", "all_tags", "put_tag"]


@dataclass(frozen=True, slots=True)
class Tagged:
    """One tag of one anchor, and where it was given."""

    anchor_id: AnchorId
    tag: str
    session_id: str | None = None
    stage: str | None = None
    step: int | None = None
    """Absolute step at which the anchor was made."""


def put_tag(blobs: BlobStore, tagged: Tagged) -> None:
    """Record a tag."""
    value = asdict(tagged)
    digest = canon.digest("dsec/tag/1", value)
    name = f"tags/{tagged.anchor_id[:2]}/{tagged.anchor_id}.{digest[:16]}"
    blobs.put(name, [root.seal(name, value)])


def all_tags(store: Store) -> Iterator[Tagged]:
    """Every tag, sorted by anchor."""
    for name in store.blobs.names("tags/"):
        try:
            yield Tagged(**root.get_json(store, name))
        except CorruptObject:
            continue
