"""`spark.read.format("tablekeeper")` and `df.write.format("tablekeeper")`, by the Python data source API of Spark 4.

Where tablekeeper is installed for Spark's Python, the format is found without being registered (`pyspark_tablekeeper`);
`register` serves the other cases.

Reading: the driver's Python process plans file slices, balanced over tasks, and each task merges its slices. The
options `columns` and `where` say which columns, partitions, files and rows are read at all, because Spark up to 4.3
cannot tell a Python source safely: it passes on no columns, and it keeps the plan that it made with the filters of one
query for all others on the same DataFrame. (`df.where(a).union(df.where(b))` then reads b twice; Spark also keeps the
plan of the first use without filters, so a DataFrame shows the table as it was then.) Spark's filters are therefore
taken over only on request, with the option `push_filters`, for a DataFrame that serves one query.

Writing: tasks stage their rows, then the driver's Python process does the rest with the local engine, because no
session can be reached from there. `Table.upsert` and its kin do all work in Spark's tasks; prefer them for much data.

Tables of Spark's catalog (`CREATE TABLE … USING tablekeeper LOCATION …`): Spark asks for the schema with the table's
options, keeps the schema, and later asks for rows with the schema alone. The schema therefore carries the options, as
metadata of its first column. A write gets neither and has to repeat the path: `INSERT INTO t WITH (path = '…')`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import datasource as api
from pyspark.sql.types import StructField, StructType

from tablekeeper.engine.spark_types import arrow_from_spark, in_types_of, spark_from_arrow
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import Operation
from tablekeeper.read.incremental import load_change_tasks
from tablekeeper.read.query import Query, load_slice_tasks
from tablekeeper.read.slice_rows import SliceTask, read_slice
from tablekeeper.record.predicate import And, Not, Predicate, from_comparisons, parse_predicate
from tablekeeper.storage import open_storage
from tablekeeper.table import Table
from tablekeeper.table.source_options import ReadOptions, WriteOptions, catalog_options
from tablekeeper.table.times import load_window
from tablekeeper.timeline.properties_file import has_table
from tablekeeper.write.context import WriteContext
from tablekeeper.write.operation import execute_staged, staging_kernel
from tablekeeper.write.staging import StagedBatch

__all__ = ["SliceReader", "StagedRows", "StagingWriter", "TablekeeperDataSource", "register"]

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_OPTIONS_IN_SCHEMA = "tablekeeper.options"
_BYTES_A_TASK = 64 << 20
_TASKS_A_CORE = 2


def register(spark: SparkSession) -> None:
    """Make the format known to this session."""
    spark.dataSource.register(TablekeeperDataSource)


class TablekeeperDataSource(api.DataSource):
    """The format `tablekeeper`.

    Read options: `as_of`, `mode`, `columns`, `where`, `since`, `until`, `meta_columns`, `parallelism` (the number of
    tasks) and `push_filters`. Write options: `operation`, and for a table that is not there yet `name`, `key`,
    `partition_by`, `ordering` and `table_type`. Both: `storage.…`, and Hudi's settings by their names.
    """

    @classmethod
    def name(cls) -> str:
        return "tablekeeper"

    def schema(self) -> StructType:
        kept = catalog_options(self.options)
        schema = spark_from_arrow(_load_query(ReadOptions.parse(self.options if kept is None else kept)).output)
        return schema if kept is None else _carrying(kept, schema)

    def reader(self, schema: StructType) -> SliceReader:
        options = ReadOptions.parse({**_carried(schema), **self.options})
        # While its setting for filters is off, Spark refuses every reader that could take some.
        takes_filters = options.push_filters and _passes_filters_on()
        return FilteringReader(options, schema) if takes_filters else SliceReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        options = WriteOptions.parse(self.options, overwrite=overwrite)
        return StagingWriter(options, schema)


class SlicePartition(api.InputPartition):
    """The slices that one task reads."""

    def __init__(self, tasks: Sequence[SliceTask]) -> None:
        super().__init__(len(tasks))
        self.tasks = tuple(tasks)


class SliceReader(api.DataSourceReader):
    """Reads `schema`, slices of the table balanced over tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed: tuple[Predicate, ...] = ()

    def partitions(self) -> list[SlicePartition]:
        query = _load_query(self._options, columns=self._schema.names, pushed=self._pushed)
        _refuse_other_types(query, self._schema)
        if self._options.is_incremental:
            window = load_window(query, since=self._options.since, until=self._options.until)
            tasks = load_change_tasks(query, window)
        else:
            tasks = load_slice_tasks(query)
        # Spark asks a reader without partitions to read a partition that it makes up; an empty one reads nothing.
        return [SlicePartition(share) for share in _balanced(tasks, self._options.parallelism) or [[]]]

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            raise TypeError(f"not a partition of this reader: {partition!r}")
        expected = arrow_from_spark(self._schema)
        for task in partition.tasks:
            for batch in read_slice(task):
                yield in_types_of(expected, batch)


class FilteringReader(SliceReader):
    """A reader that takes over the filters that it can evaluate as Spark would."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 (Spark's name)
        schema = arrow_from_spark(self._schema)
        for each in filters:
            predicate = _predicate(each, schema)
            if predicate is None:
                yield each
            else:
                self._pushed += (predicate,)


class StagedRows(api.WriterCommitMessage):
    """Where a task parked its rows."""

    def __init__(self, batches: Sequence[StagedBatch]) -> None:
        self.batches = tuple(batches)


class StagingWriter(api.DataSourceArrowWriter):
    """Tasks stage rows; the commit finds their file groups, writes them and puts the commit on the timeline."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._incoming = arrow_from_spark(schema)
        _create_missing_table(options, self._incoming)
        self._context: WriteContext = _open(options)._load_write(options.operation, self._incoming).context

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        task = TaskContext.get()
        part = task.partitionId() if task is not None else 0
        return StagedRows(staging_kernel(self._options.operation)(self._context, part, iterator))

    def commit(self, messages: list[api.WriterCommitMessage | None]) -> None:
        staged = [batch for message in messages if isinstance(message, StagedRows) for batch in message.batches]
        request = _open(self._options)._load_write(self._options.operation, self._incoming)
        execute_staged(replace(request, context=self._context), staged)

    def abort(self, messages: list[api.WriterCommitMessage | None]) -> None:
        self._context.store.storage.delete_tree(self._context.staging)


def _carrying(options: Mapping[str, str], schema: StructType) -> StructType:
    first, *others = schema.fields
    metadata = {**first.metadata, _OPTIONS_IN_SCHEMA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def _carried(schema: StructType) -> dict[str, str]:
    """The options that `_carrying` put into the schema, if it did."""
    for field in schema.fields:
        if _OPTIONS_IN_SCHEMA in field.metadata:
            return dict(json.loads(field.metadata[_OPTIONS_IN_SCHEMA]))
    return {}


def _passes_filters_on() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(spec, "name", None) == _PUSHDOWN_WORKER


def _open(options: ReadOptions | WriteOptions) -> Table:
    return Table.open(options.path, engine="local", options=options.settings, storage_options=options.storage)


def _load_query(
    options: ReadOptions, *, columns: Sequence[str] | None = None, pushed: Sequence[Predicate] = ()
) -> Query:
    conditions = [*([parse_predicate(options.where)] if options.where else []), *pushed]
    where = And(tuple(conditions)) if len(conditions) > 1 else conditions[0] if conditions else None
    return _open(options)._load_query(
        columns=columns if columns is not None else options.columns,
        where=where,
        as_of=options.as_of,
        mode=options.mode,
        meta_columns=options.meta_columns,
    )


def _refuse_other_types(query: Query, schema: StructType) -> None:
    """A schema given to `.schema(…)` chooses columns; it cannot change their types."""
    for mine, wanted in zip(spark_from_arrow(query.output).fields, schema.fields, strict=True):
        if mine.dataType.simpleString() != wanted.dataType.simpleString():
            raise InvalidRequestError(
                f"column {mine.name} of table {query.config.name} is {mine.dataType.simpleString()}, not "
                f"{wanted.dataType.simpleString()}. Read it as it is, and cast it in a select."
            )


def _balanced(tasks: Sequence[SliceTask], parallelism: int) -> list[list[SliceTask]]:
    """Shares of about the same number of bytes: the heaviest slice first, each to the share that has least."""
    sizes = [task.file_slice.size for task in tasks]
    wished = parallelism or max((os.cpu_count() or 1) * _TASKS_A_CORE, -(-sum(sizes) // _BYTES_A_TASK))
    shares: list[list[SliceTask]] = [[] for _ in range(min(wished, len(tasks)))]
    loads = [0] * len(shares)
    for number in sorted(range(len(tasks)), key=lambda n: -sizes[n]):
        lightest = loads.index(min(loads))
        shares[lightest].append(tasks[number])
        loads[lightest] += sizes[number] + 1
    return shares


_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "IsNull": "is null",
    "IsNotNull": "is not null",
    "StringStartsWith": "starts with",
    "StringEndsWith": "ends with",
    "StringContains": "contains",
}


def _predicate(given: Any, schema: pa.Schema) -> Predicate | None:
    """The filter as a predicate over these columns; None if Spark has to evaluate it."""
    kind = type(given).__name__
    if kind == "Not":
        # `<=>` is never null, while the equality that stands for it here is: their negations differ.
        inner = None if type(given.child).__name__ == "EqualNullSafe" else _predicate(given.child, schema)
        return None if inner is None else Not(inner)
    if kind not in _COMPARISONS or any("." in part for part in given.attribute):
        return None
    comparison = (".".join(given.attribute), _COMPARISONS[kind], getattr(given, "value", None))
    try:
        predicate = from_comparisons([comparison])
        predicate.to_arrow(schema)
    except InvalidRequestError:
        return None
    return predicate


def _create_missing_table(options: WriteOptions, schema: pa.Schema) -> None:
    if has_table(open_storage(options.path, options=options.storage)):
        return
    if not options.makes_tables or options.operation is Operation.DELETE:
        raise InvalidRequestError(
            f"there is no table at {options.path}. To make one with this write, give the option key (and partition_by, "
            "ordering, table_type, name as you need them), or make it with Table.create."
        )
    Table.create(
        options.path,
        name=options.name,
        schema=schema,
        key=options.key or None,
        partition_by=options.partition_by or None,
        ordering=options.ordering or None,
        table_type=options.table_type,
        engine="local",
        options=options.settings,
        storage_options=options.storage,
    )
