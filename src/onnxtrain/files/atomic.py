"""Files are written entirely, or not at all.

A checkpoint may be two files that belong together, ``path`` and ``path.data``. Both are written
under other names and forced to disk. The new main file is then renamed to a marker: that single
rename commits the save. Putting the pair in place (first the data, then the marker becomes the
main file) can be repeated by whoever comes next if its process dies.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import sys
import time
from collections.abc import Iterator

from onnxtrain.errors import CheckpointError, SaveError
from onnxtrain.files.staging import (
    Content,
    abandoned_files,
    is_at,
    lock,
    remove,
    staged_files,
    staged_path,
    sync_folder,
    written,
)

_STAGED = "tmp"
_STAGED_DATA = "data"
_WITH_DATA = "with-data"
_WITHOUT_DATA = "without-data"
_ATTEMPTS = 200
_PAUSE = 0.01


def data_path(path: str | os.PathLike[str]) -> str:
    """Where the data of a main file is written: beside the file that a link points to."""
    return os.path.realpath(os.path.realpath(path) + ".data")


def atomic_write(path: str | os.PathLike[str], content: Content) -> None:
    """Write a file so that a crash at any moment leaves the old file or the new one.

    A link is followed, and the permissions of a file that is replaced are kept.

    Raises:
        SaveError: if the system refuses; the old file is untouched and no partial file is left.
    """
    final = os.path.realpath(path)
    staged = staged_path(final, final, secrets.token_hex(8), _STAGED)
    with _saving(path):
        finish_pending(final)
        try:
            with written(staged, content, like=final):
                os.replace(staged, final)
        except BaseException:
            remove(staged)
            raise
        sync_folder(final)


def atomic_write_pair(path: str | os.PathLike[str], main: Content, data: Content | None) -> None:
    """Replace ``path`` and ``path.data``; a crash at any moment leaves the old pair or the new one.

    Readers must use ``open_pair``, which completes a save that was cut off. One process may save
    to a path at a time.

    Args:
        path: the main file.
        main: its content.
        data: content of the data file; None removes the data file.

    Raises:
        SaveError: if the system refuses; the old pair is untouched.
    """
    final, final_data = os.path.realpath(path), data_path(path)
    token = secrets.token_hex(8)
    staged = staged_path(final, final, token, _STAGED)
    staged_data = staged_path(final, final_data, token, _STAGED_DATA)
    marker = staged_path(final, final, token, _WITHOUT_DATA if data is None else _WITH_DATA)
    with _saving(path):
        finish_pending(final)
        try:
            with contextlib.ExitStack() as stack:
                if data is not None:
                    like = final_data if os.path.exists(final_data) else final
                    stack.enter_context(written(staged_data, data, like=like))
                stack.enter_context(written(staged, main, like=final))
                sync_folder(staged_data)
                os.replace(staged, marker)
                sync_folder(marker)
                _publish(final, marker)
        except BaseException:
            _withdraw(final, marker, final_data if data is None else staged_data)
            if not os.path.lexists(marker):
                remove(staged)
                remove(staged_data)
            raise


@contextlib.contextmanager
def _saving(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a refusal of the system into a ``SaveError`` that names the file."""
    try:
        yield
    except OSError as error:
        refusal = SaveError(
            f"cannot save '{os.fspath(path)}': {error.strerror or error}\n"
            "  what was there before is untouched and no partial file is left\n"
            "  make room or choose another folder, then save again"
        )
        refusal.errno = error.errno
        raise refusal from error


@contextlib.contextmanager
def loading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a refusal of the system into a ``CheckpointError``, and name the file in it."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot load checkpoint '{os.fspath(path)}': {reason}") from error


def _publish(final: str, marker: str) -> None:
    """Put a committed pair in place; what is already in place is skipped."""
    final_data = data_path(final)
    _, token, kind = marker.rsplit(".", 2)
    with contextlib.suppress(FileNotFoundError):
        if kind == _WITH_DATA:
            os.replace(staged_path(final, final_data, token, _STAGED_DATA), final_data)
        else:
            os.unlink(final_data)
    sync_folder(final_data)
    with contextlib.suppress(FileNotFoundError):
        os.replace(marker, final)
    sync_folder(final)


def _withdraw(final: str, marker: str, first: str) -> None:
    """Undo a commit whose first step, taking ``first`` away, was not done; else complete it."""
    if os.path.lexists(first):
        remove(marker)
    else:
        with contextlib.suppress(OSError):
            os.replace(marker, final)


def finish_pending(path: str | os.PathLike[str]) -> None:
    """Complete a committed save whose process died, and remove what uncommitted ones left.

    A save that a living process has under way is waited for if it is committed, and left alone if
    it is not.
    """
    final = os.path.realpath(path)
    for marker in _markers(final):
        with contextlib.suppress(FileNotFoundError), open(marker, "r+b") as handle:
            lock(handle, wait=True)
            if is_at(handle, marker):
                if sys.platform == "win32":
                    handle.close()
                _publish(final, marker)
    for abandoned in abandoned_files(final, final, _STAGED):
        remove(abandoned)
    for abandoned in abandoned_files(final, data_path(final), _STAGED_DATA):
        if not os.path.exists(_marker_of(final, abandoned)):
            remove(abandoned)


def _marker_of(final: str, staged_data: str) -> str:
    """The marker that would commit a staged data file."""
    return staged_path(final, final, staged_data.rsplit(".", 2)[1], _WITH_DATA)


def _markers(final: str) -> list[str]:
    """Markers of committed saves that are not in place yet."""
    return staged_files(final, final, _WITH_DATA, _WITHOUT_DATA)


@contextlib.contextmanager
def open_pair(
    path: str | os.PathLike[str],
) -> Iterator[tuple[io.BufferedReader, io.BufferedReader | None]]:
    """Open a main file and its data (None if there is none) that were saved together.

    Raises:
        OSError: if the main file cannot be opened.
        CheckpointError: if a save that was cut off cannot be completed.
    """
    final = os.path.realpath(path)
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(PermissionError):
            finish_pending(final)
        with contextlib.ExitStack() as stack:
            main = stack.enter_context(open(final, "rb"))
            data = _open_data(path, stack)
            # In this order: a marker that is gone by now has become a main file that is not ours.
            if not _markers(final) and is_at(main, final):
                yield main, data
                return
        time.sleep(_PAUSE)
    raise CheckpointError(
        "a save of it was cut off and may not be completed from here\n"
        f"  have  {', '.join(_markers(final)) or 'files that are replaced all the time'}\n"
        "  load it once as a user who may write to its folder"
    )


def _open_data(
    path: str | os.PathLike[str], stack: contextlib.ExitStack
) -> io.BufferedReader | None:
    """The data file beside the real main file, else the one beside the link."""
    for candidate in (data_path(path), os.fspath(path) + ".data"):
        with contextlib.suppress(FileNotFoundError):
            return stack.enter_context(open(candidate, "rb"))
    return None
