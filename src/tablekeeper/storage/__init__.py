"""Bytes in a store: one protocol over local files, memory and object stores."""

from tablekeeper.storage.local import LocalStorage
from tablekeeper.storage.memory import MemoryStorage, forget_memory
from tablekeeper.storage.open import open_storage
from tablekeeper.storage.protocol import FileInfo, Storage, StorageSpec, VersionedBytes, canonical_uri, hadoop_path

__all__ = [
    "FileInfo",
    "LocalStorage",
    "MemoryStorage",
    "Storage",
    "StorageSpec",
    "VersionedBytes",
    "canonical_uri",
    "forget_memory",
    "hadoop_path",
    "open_storage",
]
