"""The contract of a `BlobStore`, as a class of tests.

Subclass it in a test module and give it a fixture ``blobs`` that returns an empty store::

    class TestMine(BlobStoreContract):
        @pytest.fixture
        def blobs(self, tmp_path):
            return LocalBlobs(tmp_path)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import pytest

from dsec.errors import AbsentError, UsageError
from dsec.store.blobs import BlobStore

__all__ = ["BAD_NAMES", "BlobStoreContract"]

T = TypeVar("T")

BAD_NAMES = ("", "/", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a/.hidden", "a\0b", "a b", "tmp/x", "a\n")
"""Names that every store refuses."""

_WRITERS = 8


class BlobStoreContract:
    """What every `BlobStore` does, whatever it keeps its objects in."""

    def test_what_is_put_is_got(self, blobs: BlobStore) -> None:
        """Pieces of every kind of buffer come back as one."""
        blobs.put("anchors/ab/x", [b"one", bytearray(b"two"), memoryview(b"three"), b""])
        assert blobs.get("anchors/ab/x") == b"onetwothree"
        assert blobs.size("anchors/ab/x") == 11

    def test_an_empty_object_is_an_object(self, blobs: BlobStore) -> None:
        """Empty is not absent."""
        blobs.put("a", [])
        assert blobs.get("a") == b""
        assert blobs.size("a") == 0

    def test_pieces_of_wider_items_count_in_bytes(self, blobs: BlobStore) -> None:
        """A memoryview of doubles is eight bytes an item."""
        numbers = memoryview(b"0123456789abcdef").cast("d")
        blobs.put("a", [numbers])
        assert blobs.get("a") == b"0123456789abcdef"
        blobs.put("a", [numbers])
        assert blobs.size("a") == 16

    def test_very_many_pieces_are_one_object(self, blobs: BlobStore) -> None:
        """More pieces than one system call takes."""
        blobs.put("a", [b"%04d" % number for number in range(5000)])
        assert blobs.get("a") == b"".join(b"%04d" % number for number in range(5000))

    def test_an_absent_object_is_an_error_that_names_it(self, blobs: BlobStore) -> None:
        """Never empty bytes."""
        with pytest.raises(AbsentError, match="anchors/ab/none"):
            blobs.get("anchors/ab/none")
        assert blobs.size("anchors/ab/none") is None

    def test_a_folder_is_no_object(self, blobs: BlobStore) -> None:
        """Names do not overlap with their prefixes."""
        blobs.put("a/b", [b"x"])
        assert blobs.size("a/b/c") is None
        with pytest.raises(AbsentError):
            blobs.get("a/b/c")
        blobs.remove("a/b/c")
        blobs.quarantine("a/b/c")

    def test_put_keeps_an_object_of_the_same_size(self, blobs: BlobStore) -> None:
        """Content names it, so the same size is the same object."""
        blobs.put("a", [b"first"])
        blobs.put("a", [b"other"])
        assert blobs.get("a") == b"first"

    def test_put_mends_an_object_of_another_size(self, blobs: BlobStore) -> None:
        """A truncated object is written again."""
        blobs.put("a", [b"fir"])
        blobs.put("a", [b"first"])
        assert blobs.get("a") == b"first"

    def test_put_new_never_overwrites(self, blobs: BlobStore) -> None:
        """The first writer wins, even if the second one's is longer."""
        assert blobs.put_new("a", [b"first"])
        assert not blobs.put_new("a", [b"second"])
        assert blobs.get("a") == b"first"

    def test_replace_overwrites(self, blobs: BlobStore) -> None:
        """Also one of the same size."""
        blobs.replace("a", [b"first"])
        blobs.replace("a", [b"other"])
        assert blobs.get("a") == b"other"

    def test_remove_takes_absence_for_done(self, blobs: BlobStore) -> None:
        """Two that remove the same object both succeed."""
        blobs.put("a", [b"x"])
        blobs.remove("a")
        blobs.remove("a")
        assert blobs.size("a") is None

    def test_a_quarantined_object_is_absent_and_kept(self, blobs: BlobStore) -> None:
        """Each one is kept under the next number."""
        for content in (b"bad", b"worse"):
            blobs.put("a/x", [content])
            blobs.quarantine("a/x")
            assert blobs.size("a/x") is None
        blobs.quarantine("a/x")
        assert blobs.get("quarantine/a/x.0") == b"bad"
        assert blobs.get("quarantine/a/x.1") == b"worse"

    def test_names_are_sorted_and_start_with_the_prefix(self, blobs: BlobStore) -> None:
        """As plain text, whatever lies in folders."""
        for name in ("b/1", "a/b/2", "a/b-c", "a/b.c", "a/b/1", "a.x", "ab"):
            blobs.put(name, [b""])
        everything = list(blobs.names(""))
        assert everything == sorted(["b/1", "a/b/2", "a/b-c", "a/b.c", "a/b/1", "a.x", "ab"])
        assert list(blobs.names("a/b")) == ["a/b-c", "a/b.c", "a/b/1", "a/b/2"]
        assert list(blobs.names("a/b/")) == ["a/b/1", "a/b/2"]
        assert list(blobs.names("none/")) == []

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_name_that_is_none_is_refused(self, blobs: BlobStore, name: str) -> None:
        """Before anything is read or written."""
        for act in (blobs.get, blobs.size, blobs.remove, blobs.quarantine, lambda n: blobs.put(n, [b"x"])):
            with pytest.raises(UsageError):
                act(name)

    def test_of_many_writers_one_wins(self, blobs: BlobStore) -> None:
        """And what is there is whole, and the winner's."""
        for turn in range(20):
            won = _together(lambda writer, n=f"a/{turn}": blobs.put_new(n, [b"%d" % writer * 1000]))  # type: ignore[misc]
            assert sum(won) == 1
            assert blobs.get(f"a/{turn}") == b"%d" % won.index(True) * 1000

    def test_writers_of_one_object_do_not_disturb_each_other(self, blobs: BlobStore) -> None:
        """A reader sees nothing or all of it."""

        def write_and_read(_: int) -> bytes:
            blobs.put("a", [b"same" * 10_000])
            return blobs.get("a")

        assert set(_together(write_and_read)) == {b"same" * 10_000}

    def test_a_reader_sees_one_version_of_a_replaced_object(self, blobs: BlobStore) -> None:
        """Never a mixture."""
        blobs.replace("a", [b"0" * 50_000])

        def replace_and_read(writer: int) -> int:
            blobs.replace("a", [b"%d" % writer * 50_000])
            return len(set(blobs.get("a")))

        assert set(_together(replace_and_read)) == {1}

    def test_sync_returns(self, blobs: BlobStore) -> None:
        """Also on an empty store."""
        blobs.sync()
        blobs.put("a", [b"x"])
        blobs.sync()


def _together(act: Callable[[int], T]) -> list[T]:
    """Results of several threads that begin at the same moment, in order of their numbers."""
    barrier = Barrier(_WRITERS)

    def one(number: int) -> T:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(_WRITERS) as pool:
        return list(pool.map(one, range(_WRITERS)))
