"""Errors of stores: the operating system's as `StorageError`s that say what to do, and what a fenced scope meets."""

from __future__ import annotations

import errno

from tablekeeper.errors import FencedError, NotFoundError, StorageError

__all__ = ["ABSENT", "fenced_error", "is_write_fault", "storage_fault"]

ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""What the file system raises where a store has no object: a directory is not one."""

_NEXT_STEPS = {
    errno.ENOSPC: "the disk is full. Free space on that file system and run the operation again",
    errno.EDQUOT: "the disk quota is used up. Free space or raise the quota, and run the operation again",
    errno.EFBIG: "the file is larger than the system allows here. Raise the limit (ulimit -f) or use smaller files",
    errno.EACCES: "permission denied. Give this user write access to the table's directories, or run as their owner",
    errno.EPERM: "operation not permitted. Check owner, permissions and immutable flags of the directory",
    errno.EROFS: "the file system is read-only. Mount it writable, or open the table where it is",
    errno.EMFILE: "too many open files in this process. Raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine. Close some, or raise the system's limit",
    errno.ENAMETOOLONG: "the name is too long for this file system. Use shorter partition values",
    errno.ENOTDIR: "a part of the path is a file where a directory is needed. Move that file away",
    errno.EEXIST: "a part of the path is a file where a directory is needed. Move that file away",
    errno.EISDIR: "there is a directory of that name. Move it away",
    errno.EXDEV: "it lies on another file system than the table's .hoodie directory. Keep a table on one file system",
    errno.EIO: "the device reported an input/output error. Check the disk before going on",
    errno.ESTALE: "the network file system lost the file. Mount it again and repeat the operation",
}
_WRITE_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def storage_fault(error: OSError, *, action: str, location: str) -> StorageError:
    """`error`, met during `action` ("read", "write", …) on `location`, as the error that leaves the package."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError(location)
    step = _NEXT_STEPS.get(error.errno or 0, f"{error.strerror or error}. Check the path and try again")
    return StorageError(f"{location}: cannot {action}: {step}.", path=location)


def fenced_error(location: str, scope: str) -> FencedError:
    """What a change of `location` through a scope that was fenced ends with."""
    return FencedError(
        f"{location}: the right to change it was taken away ({scope}): another process has ended this work or taken "
        "it over. Nothing was changed; reload the table."
    )


def is_write_fault(error: OSError) -> bool:
    """Whether `error`, seen while a stream was being filled, can only have come from the writing itself."""
    return error.errno in _WRITE_FAULTS
