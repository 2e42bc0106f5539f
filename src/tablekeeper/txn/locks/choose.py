"""Which lock protects a table: by what the settings name, else by where the table lives.

Object stores take the storage-based lock and file systems the lock file, both shared with Java; a
table in memory takes the in-process lock.
"""

from __future__ import annotations

from tablekeeper.config.lock_settings import LockProvider, LockSettings
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.runtime import Runtime
from tablekeeper.storage.open import open_storage
from tablekeeper.storage.paths import canonical_uri
from tablekeeper.storage.protocol import Storage
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.in_process import InProcessLock
from tablekeeper.txn.locks.protocol import TableLock
from tablekeeper.txn.locks.storage_based import StorageBasedLock

__all__ = ["choose_lock"]

_BY_SCHEME = {"file": LockProvider.FILE_SYSTEM, "memory": LockProvider.IN_PROCESS}


def choose_lock(storage: Storage, *, options: LockSettings, runtime: Runtime) -> TableLock:
    """The lock of the table in `storage`."""
    uri = storage.spec.uri
    scheme = uri.partition("://")[0]
    provider = options.known_provider() or _BY_SCHEME.get(scheme, LockProvider.STORAGE_BASED)
    match provider:
        case LockProvider.IN_PROCESS:
            return InProcessLock(uri, runtime=runtime)
        case LockProvider.STORAGE_BASED:
            return StorageBasedLock(storage, settings=options, runtime=runtime)
        case LockProvider.FILE_SYSTEM:
            return _file_system_lock(storage, scheme=scheme, options=options, runtime=runtime)


def _file_system_lock(storage: Storage, *, scheme: str, options: LockSettings, runtime: Runtime) -> TableLock:
    if options.file_system_path is None:
        _refuse_object_store(scheme)
        return FileSystemLock(storage, settings=options, runtime=runtime)
    uri = canonical_uri(options.file_system_path)
    inside = storage.spec.uri.rstrip("/") + "/"
    if uri.startswith(inside):
        # The table's own store: all writers must meet there, whether they spell out the default or not.
        return FileSystemLock(storage, settings=options, runtime=runtime, directory=uri.removeprefix(inside))
    _refuse_object_store(uri.partition("://")[0])
    elsewhere = open_storage(uri, runtime=runtime)
    return FileSystemLock(elsewhere, settings=options, runtime=runtime, directory="")


def _refuse_object_store(scheme: str) -> None:
    if scheme not in _BY_SCHEME:
        raise UnsupportedFeatureError(
            f"the file system lock needs a file system, and {scheme} is an object store. Leave the lock provider out: "
            f"the storage-based lock, which Java Hudi has too, is then used."
        )
