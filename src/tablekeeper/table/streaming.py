"""Exactly once from a stream: a commit records its writer and batch, and a batch that was committed is skipped.

Spark runs a batch again when it stopped between our commit and its own note in the checkpoint. The writer is the
checkpoint: its id lies there and is as old as Spark's batch numbers, so that a new checkpoint, which counts from 0
again, is a new writer.

Batches of one writer come in order. The newest commit of the writer therefore tells all; it is looked for from the
newest commit backwards, and usually it is the first or second. A stream that rested while others wrote finds it
archived; one that has never written searches the archived timeline once and finds nothing.

Two drivers may run the same batch at once: one was taken for dead, another took its checkpoint over, and the first one
woke up. So the batch is looked for before the write, which saves the work, and again under the lock of its commit,
among the commits that were added since.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tablekeeper.config.table_config import TableConfig
from tablekeeper.engine.protocol import Engine, Frame
from tablekeeper.errors import EmptyWriteError, InvalidRequestError, TablekeeperError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.model import CommitMetadata, Operation
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage, open_storage
from tablekeeper.timeline import Timeline, load_commit_metadata, load_timeline
from tablekeeper.timeline.history import iterate_history

__all__ = ["BATCH_KEY", "WRITER_KEY", "BatchWriter", "StreamRequest", "load_batch_guard", "start_stream"]

WRITER_KEY = "tablekeeper.stream.writer"
BATCH_KEY = "tablekeeper.stream.batch"
_ID_FILE = "tablekeeper-writer-id"
_OPERATIONS = (Operation.UPSERT, Operation.INSERT, Operation.BULK_INSERT, Operation.DELETE)
_LOG = logging.getLogger(__name__)

WriteRows = Callable[[Operation, Frame, Mapping[str, str]], object]


@dataclass(frozen=True)
class StreamRequest:
    """A stream into a table as asked for."""

    checkpoint: str | os.PathLike[str]
    operation: str
    trigger: str | Mapping[str, Any] | None
    query_name: str | None
    output_mode: str


class BatchCommittedError(TablekeeperError):
    """The batch is in the table: there is nothing to write."""


@dataclass(frozen=True)
class BatchWriter:
    """Writes the batches of one stream, each once. `write` asks `load_batch_guard` about the batch."""

    storage: Storage
    operation: Operation
    writer: str
    write: WriteRows

    def __call__(self, rows: Frame, batch: int) -> None:
        try:
            self.write(self.operation, rows, {WRITER_KEY: self.writer, BATCH_KEY: str(batch)})
        except BatchCommittedError:
            _LOG.info("batch %d of stream %s is in the table already and is skipped", batch, self.writer)
        except EmptyWriteError:
            _LOG.info("batch %d of stream %s has no rows", batch, self.writer)


class BatchGuard:
    """Keeps a batch from being committed twice: raises `BatchCommittedError` if a new commit has it.

    `seen` is the timeline on which the batch was not found. Commits that completed since are searched, and everything
    is searched again if instants were archived in the meantime: a new commit may be among them.
    """

    def __init__(self, storage: Storage, config: TableConfig, seen: Timeline, *, writer: str, batch: int) -> None:
        self._storage = storage
        self._config = config
        self._writer = writer
        self._batch = batch
        self._first_active = seen.first_active_write
        self._seen = {instant.requested_at for instant in seen.completed_writes}

    def __call__(self, timeline: Timeline) -> None:
        """Asked under the lock of the commit, on the timeline that was loaded under it."""
        if timeline.first_active_write == self._first_active:
            news = [i for i in timeline.completed_writes_by_completion if i.requested_at not in self._seen]
            commits = (load_commit_metadata(self._storage, self._config, instant) for instant in news)
            found = [number for each in commits if (number := _batch_of(each, self._writer)) is not None]
            last = max(found, default=None)
        else:
            last = _find_last_batch(self._storage, self._config, timeline, self._writer)
        _refuse_known_batch(self._writer, self._batch, last=last)


def load_batch_guard(storage: Storage, config: TableConfig, extra: Mapping[str, str]) -> BatchGuard | None:
    """What a write with this extra metadata has to ask under the lock of its commit; None if it is no batch.

    Raises `BatchCommittedError` if the batch is in the table already.
    """
    writer, batch = extra.get(WRITER_KEY), extra.get(BATCH_KEY, "")
    if not writer or not batch.isdigit():
        return None
    timeline = load_timeline(storage, config)
    _refuse_known_batch(writer, int(batch), last=_find_last_batch(storage, config, timeline, writer))
    return BatchGuard(storage, config, timeline, writer=writer, batch=int(batch))


def _find_last_batch(storage: Storage, config: TableConfig, timeline: Timeline, writer: str) -> int | None:
    active = (load_commit_metadata(storage, config, i) for i in reversed(timeline.completed_writes_by_completion))
    archived = (
        decode_commit_metadata(each.metadata, file=f"archived {each.instant}")
        for each in iterate_history(storage, config)
        if each.instant.action.writes_data and each.metadata
    )
    numbers = (_batch_of(metadata, writer) for metadata in chain(active, archived))
    return next((number for number in numbers if number is not None), None)


def _batch_of(metadata: CommitMetadata, writer: str) -> int | None:
    """Which batch of the writer the commit is, None if it is another's."""
    batch = metadata.extra.get(BATCH_KEY, "")
    return int(batch) if metadata.extra.get(WRITER_KEY) == writer and batch.isdigit() else None


def _refuse_known_batch(writer: str, batch: int, *, last: int | None) -> None:
    if last is not None and batch <= last:
        raise BatchCommittedError(
            f"batch {batch} of stream {writer} is in the table already: the last one is {last}. Nothing was written."
        )


def load_writer_id(storage: Storage, *, runtime: Runtime) -> str:
    """The id of the writer behind a checkpoint; made when it is asked for the first time."""
    storage.put_if_absent(_ID_FILE, runtime.ids.uuid().encode())
    return storage.read(_ID_FILE).decode()


def start_stream(
    frame: Frame, request: StreamRequest, *, storage: Storage, engine: Engine, runtime: Runtime, write: WriteRows
) -> Any:
    """Start the streaming query that writes `frame` into the table in `storage`."""
    if not engine.streams:
        raise InvalidRequestError("write_stream needs Spark: open the table with spark=…")
    operation = _operation(request.operation)
    place = open_storage(request.checkpoint, options=storage.spec.options, runtime=runtime)
    # Importing PySpark takes time and is optional: only those who bring a session pay for it.
    from tablekeeper.engine.spark_streaming import start_query  # noqa: PLC0415

    return start_query(
        frame,
        BatchWriter(storage, operation, load_writer_id(place, runtime=runtime), write),
        checkpoint=place.spec.uri,
        trigger=request.trigger,
        query_name=request.query_name,
        output_mode=request.output_mode,
    )


def _operation(name: str) -> Operation:
    for operation in _OPERATIONS:
        if operation.value == name.upper():
            return operation
    known = ", ".join(operation.value.lower() for operation in _OPERATIONS)
    raise InvalidRequestError(f"operation {name!r}: a stream can {known}")
