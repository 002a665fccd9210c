"""What the store asks of the operating system: who I am, who is alive, sync, rename without replacing.

Linux is what this is made for; elsewhere each function has a fallback of the standard library or of psutil.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsec.core import canon

__all__ = ["NETWORK_FILESYSTEMS", "Process", "filesystem", "is_alive", "rename_new", "sync_filesystem", "this_process"]

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs"}
)
"""Types of file systems whose memory maps and locks are not shared between machines."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


@dataclass(frozen=True, slots=True)
class Process:
    """One process, never mistaken for a later one with the same number."""

    host: str
    """Host name, boot and pid namespace: where ``pid`` means something."""
    pid: int
    started: int
    """Start in clock ticks since boot."""

    @property
    def mark(self) -> str:
        """Sixteen hexadecimal characters that stand for `host` in file names."""
        return _mark(self.host)


def this_process() -> Process:
    """The process that asks."""
    return _this_process(os.getpid())


def is_alive(process: Process) -> bool | None:
    """Whether a process still runs; None if nobody here can tell: it is on another host, or hidden from this user."""
    if process.host != _host():
        return None
    try:
        return _started(process.pid) == process.started
    except PermissionError:
        return None


def sync_filesystem(path: Path) -> None:
    """Return once all that was written to the file system of ``path`` is on its medium."""
    call = _libc_function("syncfs")
    if call is None:
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if call(descriptor) != 0:
            raise _os_error(path)
    finally:
        os.close(descriptor)


def rename_new(source: Path, target: Path) -> bool:
    """Rename unless the target exists; False if it does. For file systems without hard links."""
    call = _libc_function("renameat2")
    if call is None:
        raise OSError(f"neither hard links nor renameat2 on the file system of {target.parent}")
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    error = _os_error(target)
    if isinstance(error, FileExistsError):
        return False
    raise error


def filesystem(path: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds ``path`` (``ext4``, ``nfs4``), empty if the system does not say.

    Parameters
    ----------
    path
        Any path, existing or not.
    mounts
        Text of ``/proc/mounts``; read from there if None.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
        except OSError:
            return ""
    best = (-1, "")
    for line in mounts.splitlines():
        _, point, kind = line.split(" ")[:3]
        folder = point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        if path.resolve().is_relative_to(folder) and len(folder) >= best[0]:
            best = (len(folder), kind)
    return best[1]


@functools.lru_cache(maxsize=4)  # by pid, so that a forked child does not take itself for its parent
def _this_process(pid: int) -> Process:
    return Process(_host(), pid, _started(pid) or 0)


@functools.cache
def _host() -> str:
    boot = _first_line("/proc/sys/kernel/random/boot_id")
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{platform.node()} {boot} {namespace}".strip()


@functools.cache
def _mark(host: str) -> str:
    return canon.blob_digest(host.encode())[:16]


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Start of a process in ticks since boot, None if there is none (or only its corpse)."""
    if not sys.platform.startswith("linux"):
        return _started_elsewhere(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        _refuse_hidden(pid)
        return None
    state, *fields = stat[stat.rindex(b")") + 2 :].split()
    return None if state in (b"Z", b"X") else int(fields[18])


def _refuse_hidden(pid: int) -> None:
    """PermissionError for a process of another user that ``hidepid`` hides in /proc."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)


def _started_elsewhere(pid: int) -> int | None:
    import psutil  # type: ignore[import-untyped]

    try:
        return int(psutil.Process(pid).create_time() * 100)
    except psutil.NoSuchProcess:
        return None


@functools.cache
def _libc_function(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError, TypeError):
        return None
    return function


def _os_error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))
