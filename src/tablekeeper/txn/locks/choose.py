"""Which lock protects a table: by what the settings name, else by where the table lives.

Object stores take the storage-based lock and file systems the lock file, both shared with Java; a
table in memory takes the in-process lock. The lock in ZooKeeper is loaded only where it is named,
because it needs a package of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from tablekeeper.config.concurrency_settings import LockProvider, LockSettings
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.hashing import xxhash64_key
from tablekeeper.runtime import Runtime
from tablekeeper.storage.open import open_storage
from tablekeeper.storage.protocol import Storage, canonical_uri
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.in_process import InProcessLock
from tablekeeper.txn.locks.protocol import TableLock
from tablekeeper.txn.locks.storage_based import StorageBasedLock

__all__ = ["choose_lock"]

_ONE_SPELLING = {"s3", "gs"}
_BY_SCHEME = {"file": LockProvider.FILE_SYSTEM, "memory": LockProvider.IN_PROCESS}


def choose_lock(
    storage: Storage, *, options: LockSettings, runtime: Runtime, table_name: str | None = None
) -> TableLock:
    """The lock of the table in `storage`. Some are found by `table_name` if the settings do not say where."""
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
        case LockProvider.ZOOKEEPER:
            path = options.zookeeper.lock_path(table_name=table_name)
            return _zookeeper_lock(path, options=options, runtime=runtime)
        case LockProvider.ZOOKEEPER_BY_TABLE_PATH:
            return _zookeeper_lock(_path_by_table(uri, scheme=scheme), options=options, runtime=runtime)


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


def _zookeeper_lock(path: str, *, options: LockSettings, runtime: Runtime) -> TableLock:
    try:
        module = import_module("tablekeeper.txn.locks.zookeeper")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        raise InvalidRequestError(
            "the ZooKeeper lock needs the kazoo package. Install it with: pip install 'tablekeeper[zookeeper]'"
        ) from None
    return cast(TableLock, module.ZookeeperLock(path, settings=options.zookeeper, runtime=runtime))


def _path_by_table(uri: str, *, scheme: str) -> str:
    """Where Java puts the lock if it derives the place from the table's path, which it hashes as it is spelled."""
    if scheme not in _ONE_SPELLING:
        raise UnsupportedFeatureError(
            f"{LockProvider.ZOOKEEPER_BY_TABLE_PATH.value} depends on how each writer spells the table's path, and a "
            f"path like {uri} has many spellings. Give all writers {LockProvider.ZOOKEEPER.value} with a base path."
        )
    return "/".join(("", "tmp", xxhash64_key(uri).hex().upper(), "lock_key"))
