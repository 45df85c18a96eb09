"""Files that are still being written: their names, their locks, and which were left behind."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeAlias

Content: TypeAlias = bytes | Callable[[BinaryIO], object]
"""What to write: the bytes, or a function that writes them to an open file."""

_ABANDONED_AFTER = 24 * 3600.0
_LONGEST_NAME = 200


def staged_path(final: str, beside: str, token: str, kind: str) -> str:
    """Name, in the folder of ``beside``, of a file that is on its way to ``final``."""
    return os.path.join(os.path.dirname(beside), f".{_key(final)}.{token}.{kind}")


def staged_files(final: str, beside: str, *kinds: str) -> list[str]:
    """Files in the folder of ``beside`` that are on their way to ``final``."""
    folder = os.path.dirname(beside)
    pattern = re.compile(rf"\.{re.escape(_key(final))}\.[0-9a-f]{{16}}\.({'|'.join(kinds)})")
    try:
        return [os.path.join(folder, n) for n in os.listdir(folder) if pattern.fullmatch(n)]
    except OSError:  # no such folder, or one that may not be listed
        return []


def _key(final: str) -> str:
    """The name of a file, or its digest if there would be no room for a suffix."""
    name = os.fsencode(os.path.basename(final))
    return os.fsdecode(name) if len(name) <= _LONGEST_NAME else hashlib.sha256(name).hexdigest()


@contextlib.contextmanager
def written(staged: str, content: Content, like: str) -> Iterator[None]:
    """Write a new file to the disk and hold its lock, which tells others that its writer lives.

    Args:
        staged: the file to make; the caller renames or removes it.
        content: what to write.
        like: the file whose permissions the new one gets, if there is such a file.
    """
    permissions = _permissions(like)
    with _create(staged) as handle:
        if permissions is not None:
            os.chmod(staged, permissions)
        if callable(content):
            content(handle)
        else:
            handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
        if sys.platform == "win32":
            handle.close()  # Windows renames closed files only
        yield


def _permissions(path: str) -> int | None:
    """Permissions of a file that may be replaced; None if there is none yet.

    Only an ordinary file may: a device or a pipe would be gone for everybody.
    """
    if not os.path.exists(path):
        return None
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.path.isfile(path):
        raise OSError("it is a device or a pipe, not a file")
    if not os.access(path, os.W_OK):
        raise PermissionError("the file is read-only")
    return stat.S_IMODE(os.stat(path).st_mode)


def _create(staged: str) -> BinaryIO:
    """A new, locked file; made again if it was swept away before the lock was taken."""
    while True:
        handle = open(staged, "xb")  # noqa: SIM115 - the caller closes it
        lock(handle, wait=True)
        if os.fstat(handle.fileno()).st_nlink:
            return handle
        handle.close()


if sys.platform == "win32":

    def lock(handle: BinaryIO, *, wait: bool) -> bool:
        """Whether the file was locked: never, a locked file could not be renamed here."""
        return False
else:
    import fcntl

    def lock(handle: BinaryIO, *, wait: bool) -> bool:
        """Whether the file was locked, until it is closed or its process dies."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:  # another process has it, or this file system has no locks
            return False
        return True


def abandoned_files(final: str, beside: str, kind: str) -> Iterator[str]:
    """Staged files whose writers died; each is locked while the caller looks at it."""
    for staged in staged_files(final, beside, kind):
        with contextlib.suppress(OSError), open(staged, "r+b") as handle:
            age = time.time() - os.fstat(handle.fileno()).st_mtime
            if lock(handle, wait=False) or age > _ABANDONED_AFTER:
                if sys.platform == "win32":
                    handle.close()
                yield staged


def remove(path: str) -> None:
    """Remove a file if it is there and may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def is_at(handle: BinaryIO, path: str) -> bool:
    """Whether an open file is still the one with that name."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def sync_folder(path: str) -> None:
    """Make the name of a file as durable as its content, where the system can."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
