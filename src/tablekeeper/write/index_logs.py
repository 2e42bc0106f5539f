"""Logs of indexes on their way from the task that makes them to the commit: in its result, or in a staged file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tablekeeper.metadata_table.index_changes import IndexLog
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.write.context import WriteContext
from tablekeeper.write.staging import staging_file

__all__ = ["EncodedLog", "Parked"]

_MOST_TRAVELLING_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Parked:
    """Bytes that travel with a result if they are few, and are in a file if they are many."""

    size: int
    data: bytes | None
    file: str = ""

    @classmethod
    def of(cls, context: WriteContext, data: bytes) -> Parked:
        if len(data) <= _MOST_TRAVELLING_BYTES:
            return cls(len(data), data)
        file = staging_file(context, "keys")
        with context.store.storage.open_output(file) as sink:
            sink.write(data)
        return cls(len(data), None, file)

    def load(self, store: StorageHandle) -> bytes:
        return self.data if self.data is not None else store.storage.read(self.file)


@dataclass(frozen=True, slots=True)
class EncodedLog:
    """The log of one shard, with so many entries."""

    entries: int
    parked: Parked

    def log(self, store: StorageHandle) -> IndexLog:
        return IndexLog(self.entries, partial(self.parked.load, store))
