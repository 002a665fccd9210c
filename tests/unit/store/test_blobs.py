import os
import signal
from pathlib import Path

import pytest

from dsec.core import canon
from dsec.errors import AbsentError, StoreError, StoreFull, UsageError
from dsec.store import system
from dsec.store.blobs import LocalBlobs

WRITE = """
import sys
from pathlib import Path
from dsec.store.blobs import LocalBlobs
blobs = LocalBlobs(Path(sys.argv[1]))
blobs.put("a/put", [b"put" * 1000])
blobs.put_new("a/new", [b"new" * 1000])
blobs.replace("a/old", [b"fresh" * 1000])
"""

WHOLE = {"a/put": {b"put" * 1000}, "a/new": {b"new" * 1000}, "a/old": {b"stale" * 1000, b"fresh" * 1000}}


def torn(blobs: LocalBlobs) -> list[str]:
    return [name for name in blobs.names("") if blobs.get(name) not in WHOLE[name]]


@pytest.mark.parametrize("point", ["before-write", "after-temp", "after-rename"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_at_any_point_leaves_each_object_whole_or_absent(tmp_path: Path, python, point: str, nth: int) -> None:
    blobs = LocalBlobs(tmp_path)
    blobs.put("a/old", [b"stale" * 1000])
    killed = python(WRITE, tmp_path, DSEC_FAILPOINT=f"store.blobs.put.{point}:{nth}")
    assert killed.returncode == -signal.SIGKILL
    assert torn(blobs) == []
    written = nth if point == "after-rename" else nth - 1
    assert len(list(blobs.names(""))) == 1 + min(written, 2)
    assert python(WRITE, tmp_path).returncode == 0
    assert {name: blobs.get(name) for name in blobs.names("")} == {
        "a/put": b"put" * 1000,
        "a/new": b"new" * 1000,
        "a/old": b"fresh" * 1000,
    }


IN_PLACE = """
from dsec.core import failpoint
from dsec.store import blobs as module
class InPlace(module.LocalBlobs):
    def _publish(self, path, content):
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.write(content[0][:1500])
            file.flush()
            failpoint.reached("store.blobs.put.after-temp")
            file.write(content[0][1500:])
module.LocalBlobs = InPlace
"""


def test_the_kill_test_would_notice_writing_in_place(tmp_path: Path, python) -> None:
    killed = python(IN_PLACE + WRITE, tmp_path, DSEC_FAILPOINT="store.blobs.put.after-temp")
    assert killed.returncode == -signal.SIGKILL
    assert torn(LocalBlobs(tmp_path)) == ["a/put"]


def test_a_failpoint_with_a_file_fires_once_among_processes(tmp_path: Path, python) -> None:
    once = {"DSEC_FAILPOINT": "store.blobs.put.before-write", "DSEC_FAILPOINT_ONCE": str(tmp_path / "once")}
    assert python(WRITE, tmp_path / "store", **once).returncode == -signal.SIGKILL
    (tmp_path / "store").mkdir()
    assert python(WRITE, tmp_path / "store", **once).returncode == 0


def test_temporary_files_of_dead_processes_are_swept_and_no_others(tmp_path: Path, python) -> None:
    killed = python(WRITE, tmp_path, DSEC_FAILPOINT="store.blobs.put.after-temp")
    assert killed.returncode == -signal.SIGKILL
    me = system.this_process()
    living = tmp_path / "tmp" / f"{me.mark}-{me.pid}-{me.started}-aa-0"
    elsewhere = tmp_path / "tmp" / f"{'0' * 16}-1-1-aa-0"
    strange = tmp_path / "tmp" / "what"
    for path in (living, elsewhere, strange):
        path.write_bytes(b"")
    assert LocalBlobs(tmp_path).sweep() == 1
    assert sorted((tmp_path / "tmp").iterdir()) == sorted([living, elsewhere, strange])


def test_objects_are_read_only_files(tmp_path: Path) -> None:
    LocalBlobs(tmp_path).put("a", [b"x"])
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o444 & ~_umask()


def test_a_full_disk_is_named_and_leaves_nothing(small_disk: Path) -> None:
    blobs = LocalBlobs(small_disk)
    blobs.put("a/first", [b"x" * 1000])
    for write in (blobs.put, blobs.put_new, blobs.replace):
        with pytest.raises(StoreFull, match=r"a/second.*no space.*free space"):
            write("a/second", [b"x" * 1_000_000])
    assert list(blobs.names("")) == ["a/first"]
    assert not list((small_disk / "tmp").iterdir())
    blobs.put("a/second", [b"x" * 1000])


def test_a_limit_of_file_size_counts_as_full(tmp_path: Path, python) -> None:
    code = """
import resource, sys
from pathlib import Path
from dsec.errors import StoreFull
from dsec.store.blobs import LocalBlobs
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    LocalBlobs(Path(sys.argv[1])).put("a", [b"x" * 60_000] * 3)
except StoreFull as error:
    print(error)
"""
    done = python(code, tmp_path)
    assert "File too large" in done.stdout, done.stderr
    assert not list((tmp_path / "tmp").iterdir())


def test_a_store_that_cannot_be_written_says_so_and_reads_on(tmp_path: Path, python) -> None:
    LocalBlobs(tmp_path).put("a/x", [b"x"])
    code = """
import os, sys
from pathlib import Path
from dsec.errors import StoreError, StoreFull
from dsec.store.blobs import LocalBlobs
blobs = LocalBlobs(Path(sys.argv[1]))
if os.getuid() == 0:
    os.setuid(65534)
assert blobs.get("a/x") == b"x"
for act in (lambda: blobs.put("a/y", [b"y"]), lambda: blobs.remove("a/x"), lambda: blobs.quarantine("a/x")):
    try:
        act()
        print("no error")
    except StoreFull:
        print("full?")
    except StoreError as error:
        print(error)
"""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    for folder in (tmp_path / "a", tmp_path / "tmp", tmp_path):
        folder.chmod(0o555)
    done = python(code, tmp_path)
    tmp_path.chmod(0o755)
    (tmp_path / "tmp").chmod(0o755)
    (tmp_path / "a").chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all("Permission denied" in line and "must be writable" in line for line in lines)


def test_a_folder_where_an_object_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreError, match="Is a directory"):
        LocalBlobs(tmp_path).get("a")


class Syncs:
    """Records what is synced, in order, and whether the object was in place by then."""

    def __init__(self, root: Path, target: str) -> None:
        self.root = root
        self.target = root / target
        self.seen: list[tuple[str, bool]] = []

    def __call__(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(self.root)
        self.seen.append((path.parts[0] if path.parts[:1] == ("tmp",) else str(path), self.target.exists()))


def test_strict_syncs_the_file_then_its_folders_before_it_returns(tmp_path: Path) -> None:
    syncs = Syncs(tmp_path, "anchors/ab/x")
    LocalBlobs(tmp_path, "strict", fsync=syncs).put("anchors/ab/x", [b"x"])
    assert syncs.seen == [("tmp", False), ("anchors/ab", True), ("anchors", True), (".", True)]


def test_strict_syncs_an_object_that_another_writer_left_unsynced(tmp_path: Path) -> None:
    LocalBlobs(tmp_path).put("anchors/ab/x", [b"x"])
    for write in ("put", "put_new"):
        syncs = Syncs(tmp_path, "anchors/ab/x")
        getattr(LocalBlobs(tmp_path, "strict", fsync=syncs), write)("anchors/ab/x", [b"x"])
        assert [path for path, _ in syncs.seen] == ["anchors/ab/x", "anchors/ab", "anchors", "."]


def test_group_syncs_nothing_by_itself(tmp_path: Path) -> None:
    syncs = Syncs(tmp_path, "a")
    LocalBlobs(tmp_path, "group", fsync=syncs).put("a", [b"x"])
    assert syncs.seen == []


def test_an_error_while_syncing_publishes_nothing(tmp_path: Path) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    blobs = LocalBlobs(tmp_path, "strict", fsync=broken)
    with pytest.raises(StoreError, match="Input/output error"):
        blobs.put("a", [b"x"])
    with pytest.raises(AbsentError):
        blobs.get("a")
    assert not list((tmp_path / "tmp").iterdir())


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'fast'"):
        LocalBlobs(tmp_path, "fast")  # type: ignore[arg-type]


def test_without_hard_links_the_first_writer_still_wins(tmp_path: Path) -> None:
    for writer, won in (("one", True), ("two", False)):
        source = tmp_path / writer
        source.write_text(writer)
        assert system.rename_new(source, tmp_path / "target") is won
    assert (tmp_path / "target").read_text() == "one"


MOUNTS = """/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/my\\040disk tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/x", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/store/catalog.db", "nfs4"),
        ("/home/me/my disk/c", "tmpfs"),
        ("/homes", "ext4"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert system.filesystem(Path(path), MOUNTS) == kind


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    me = system.this_process()
    assert system.is_alive(me) is True
    assert system.is_alive(system.Process(me.host, me.pid, me.started + 1)) is False
    assert system.is_alive(system.Process("elsewhere", me.pid, me.started)) is None


def test_a_corpse_is_not_alive() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    started = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19])
    assert system.is_alive(system.Process(system.this_process().host, child, started)) is False
    os.waitpid(child, 0)


def test_content_of_a_large_object_survives(tmp_path: Path) -> None:
    pieces = [bytes([number]) * 1_000_003 for number in range(20)]
    blobs = LocalBlobs(tmp_path)
    blobs.put("a", pieces)
    assert canon.blob_digest(blobs.get("a")) == canon.blob_digest(b"".join(pieces))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
