"""Files that a commit names and that are not there."""

from __future__ import annotations

from tablekeeper.errors import StorageError

__all__ = ["vanished_file"]


def vanished_file(path: str) -> StorageError:
    """The error for a data file that is gone, with what to do about it."""
    return StorageError(
        f"{path} is gone: it was cleaned, or the table was rolled back while it was read. Read the table again; if "
        "you asked for a past moment or window, ask for a later one.",
        path=path,
    )
