"""Exactly once from a stream: a commit says which batch of which writer it is, and a batch that is there is skipped.

Spark runs a batch again when it stopped between our commit and its own note in the checkpoint. The writer is the
checkpoint: its id lies there and is as old as Spark's batch numbers, so that a new checkpoint, which counts from 0
again, is a new writer.

Batches of one writer come in order. The newest commit of the writer therefore tells all; it is looked for from the
newest commit backwards, and usually it is the first or second. A stream that rested while others wrote finds it
archived; one that has never written searches the archived timeline in vain, once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tablekeeper.engine.protocol import Engine, Frame
from tablekeeper.errors import EmptyWriteError, InvalidRequestError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.model import Operation
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage, open_storage
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tablekeeper.timeline.history import iterate_history
from tablekeeper.txn.properties_file import load_table_config

__all__ = ["BATCH_KEY", "WRITER_KEY", "BatchWriter", "StreamRequest", "start_stream"]

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


@dataclass(frozen=True)
class BatchWriter:
    """Writes the batches of one stream, each once."""

    storage: Storage
    operation: Operation
    writer: str
    write: WriteRows

    def __call__(self, rows: Frame, batch: int) -> None:
        last = load_last_batch(self.storage, self.writer)
        if last is not None and batch <= last:
            _LOG.info("batch %d of stream %s is in the table already and is skipped", batch, self.writer)
            return
        try:
            self.write(self.operation, rows, {WRITER_KEY: self.writer, BATCH_KEY: str(batch)})
        except EmptyWriteError:
            _LOG.info("batch %d of stream %s has no rows", batch, self.writer)


def load_last_batch(storage: Storage, writer: str) -> int | None:
    """The newest batch of the writer that was committed, None if there is none."""
    config = load_table_config(storage)
    timeline = load_timeline(storage, config)
    active = (load_commit_metadata(storage, config, i) for i in reversed(timeline.completed_writes_by_completion))
    archived = (
        decode_commit_metadata(each.metadata, file=f"archived {each.instant}")
        for each in iterate_history(storage, config)
        if each.instant.action.writes_data and each.metadata
    )
    for metadata in chain(active, archived):
        if metadata.extra.get(WRITER_KEY) == writer and metadata.extra.get(BATCH_KEY, "").isdigit():
            return int(metadata.extra[BATCH_KEY])
    return None


def load_writer_id(storage: Storage, *, runtime: Runtime) -> str:
    """The id of the writer behind a checkpoint; made when it is asked for the first time."""
    storage.put_if_absent(_ID_FILE, runtime.ids.uuid().encode())
    return storage.read(_ID_FILE).decode()


def start_stream(
    frame: Frame, request: StreamRequest, *, storage: Storage, engine: Engine, runtime: Runtime, write: WriteRows
) -> Any:
    """Start the streaming query that writes `frame` into the table in `storage`."""
    if engine.name != "spark":
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
