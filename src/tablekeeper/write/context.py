"""What every kernel of one write knows: the table, the instant, the schemas and the settings. Picklable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from tablekeeper.config.write_settings import WriteSettings
from tablekeeper.format.avro_arrow import arrow_to_avro_schema, with_meta_columns
from tablekeeper.model import FileSlice, LogFile
from tablekeeper.read.log_changes import EVERY_BLOCK, BlockVisibility, LogChanges, load_changes
from tablekeeper.read.slice_rows import SliceTask
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import MergeRule
from tablekeeper.record.partition_paths import PartitionSpec
from tablekeeper.runtime import Runtime, memory_left_bytes
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.txn.attempts import AttemptGuard, AttemptId

__all__ = ["FILLED_COLUMNS", "WriteContext", "avro_schema_json", "staging_directory"]

# Rows are in memory as received, ordered by partition, as columns of a file and as encoded pages.
_SHARES_OF_MEMORY = 16
_LEAST_SHARE_BYTES = 1 << 20
FILLED_COLUMNS = frozenset({"_hoodie_partition_path", "_hoodie_file_name"})
"""Columns that the writer of a base file fills with values of its own."""


@dataclass(frozen=True)
class WriteContext:
    """One write. `schema` is the table's without meta columns, `table_schema` the same as Avro JSON, as commits
    record it, and `avro_schema` the one with meta columns that files carry.

    `staging` is the write's staging directory. `instant` is empty while rows are staged: the write is put on the
    timeline only once its rows are known to be valid. `stats_columns` are the columns whose ranges the metadata table
    needs for each file. `blocks` says which blocks of log files count. `guard` belongs to the attempt, and exists once
    the write has begun. Up to `carried_bytes` of staged rows per part are kept in memory instead of being written to
    the store. If it `looks_everywhere`, keys are looked for in all partitions, by the record index or in the files.
    """

    store: StorageHandle
    staging: str
    schema: pa.Schema
    avro_schema: str
    table_schema: str
    key: KeySpec
    partition: PartitionSpec
    rule: MergeRule
    settings: WriteSettings
    runtime: Runtime
    instant: str = ""
    stats_columns: tuple[str, ...] = ()
    blocks: BlockVisibility = EVERY_BLOCK
    guard: AttemptGuard | None = None
    carried_bytes: int = 0
    looks_everywhere: bool = False

    @property
    def file_schema(self) -> pa.Schema:
        """Columns of base files and of rows in logs."""
        return with_meta_columns(self.schema)

    @property
    def rewritten_schema(self) -> pa.Schema:
        """Columns of rows that move to another file: all but those that the writer fills."""
        return pa.schema([field for field in self.file_schema if field.name not in FILLED_COLUMNS])

    @property
    def scope(self) -> str | None:
        """The scope in which a task publishes a file."""
        return None if self.guard is None else self.guard.scope

    def for_attempt(self, attempt: AttemptId, *, is_plan: bool = False) -> Self:
        """The context of the tasks that write files."""
        guard = AttemptGuard(self.store, attempt, runtime=self.runtime, is_plan=is_plan)
        return replace(self, instant=attempt.instant.value, guard=guard)

    def within_memory(self) -> Self:
        """This context for a kernel that holds no more rows at a time than its process has memory for."""
        left = memory_left_bytes()
        if left is None:
            return self
        share = max(left // _SHARES_OF_MEMORY, _LEAST_SHARE_BYTES)
        settings = replace(
            self.settings,
            task_memory_bytes=min(self.settings.task_memory_bytes, share),
            row_group_bytes=min(self.settings.row_group_bytes, share),
        )
        return replace(self, settings=settings)

    def slice_task(
        self, file_slice: FileSlice, output: pa.Schema, *, blocks: BlockVisibility | None = None
    ) -> SliceTask:
        """A task that reads these columns of a slice, with the `blocks` of its logs that count for this write."""
        return SliceTask(
            store=self.store,
            file_slice=file_slice,
            schema=self.file_schema,
            output=output,
            rule=self.rule,
            key=self.key,
            runtime=self.runtime,
            visibility=blocks or self.blocks,
        )

    def load_changes(
        self, logs: Sequence[LogFile], schema: pa.Schema, *, blocks: BlockVisibility | None = None
    ) -> LogChanges:
        """The changes of logs, with the `blocks` that count for this write."""
        return load_changes(
            self.store.storage,
            logs,
            schema=schema,
            rule=self.rule,
            key=self.key,
            visibility=blocks or self.blocks,
            runtime=self.runtime,
        )

    def write_token(self, task: int) -> str:
        """Task, attempt, and a number that no other run of the task has: it may run twice, its files must differ."""
        attempt = 0 if self.guard is None else self.guard.attempt.number
        return f"{task}-{attempt}-{self.runtime.ids.number(1 << 31)}"

    def check(self) -> None:
        """Raise if the attempt is over. Cheap: call it once a row group or so."""
        if self.guard is not None:
            self.guard.check()

    @contextmanager
    def publishing(self, path: str) -> Iterator[None]:
        """Wraps the call that makes a file visible: if the attempt is over, it raises, or removes the file."""
        if self.guard is None:
            yield
            return
        with self.guard.publishing(path):
            yield


def avro_schema_json(schema: pa.Schema, *, table: str) -> str:
    """The Avro form of a schema under the names that Hudi gives to a table's record."""
    avro = arrow_to_avro_schema(schema, record_name=f"{table}_record", namespace=f"hoodie.{table}")
    return json.dumps(avro, separators=(",", ":"))


def staging_directory(name: str) -> str:
    """Where the rows of a running write are stored between its steps. Java ignores the folder."""
    return f".hoodie/.tablekeeper/staging/{name}"
