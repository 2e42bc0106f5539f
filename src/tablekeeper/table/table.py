"""`Table`: the public door to one Hudi table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tablekeeper.config.options import Options
from tablekeeper.engine.protocol import Engine, Frame, Progress
from tablekeeper.errors import ConflictError, InvalidRequestError
from tablekeeper.model import Operation
from tablekeeper.read.incremental import read_changes
from tablekeeper.read.query import Query, load_query_snapshot, read_rows, shown_schema
from tablekeeper.record.predicate import Predicate, parse_predicate
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.services.clean import finish_cleans
from tablekeeper.services.doctor import DoctorReport, DoctorSettings, Remedies, examine_table, repair_table
from tablekeeper.services.recovery.rollback import RollbackResult, execute_rollback
from tablekeeper.services.recovery.savepoint import (
    RestoreResult,
    Savepoint,
    SavepointListing,
    create_savepoint,
    delete_savepoint,
    load_savepoints,
    restore_savepoint,
)
from tablekeeper.snapshot.retention import refuse_cleaned_moment
from tablekeeper.snapshot.schema import load_schema_and_commits, load_table_schema
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.storage import Storage, open_storage
from tablekeeper.table.arguments import (
    checked_condition,
    checked_count,
    checked_extra,
    checked_flags,
    checked_names,
    checked_runtime,
    checked_seconds,
    checked_text,
    rows_reported,
)
from tablekeeper.table.automatic_services import InlineService, run_after_write, service_names
from tablekeeper.table.claims import understood
from tablekeeper.table.creation import NewTable, plan_table, refuse_other_table
from tablekeeper.table.engines import choose_engine
from tablekeeper.table.handle import parse_instant
from tablekeeper.table.maintenance import Maintenance
from tablekeeper.table.streaming import StreamRequest, load_batch_guard, start_stream
from tablekeeper.table.times import Changes, load_window, moment_as_of, next_cursor
from tablekeeper.table.views import FileListing, TableDescription, TimelineListing, describe_table
from tablekeeper.table.writer_options import forget_writer_options, load_writer_options, save_writer_options
from tablekeeper.timeline import load_timeline, load_timeline_beside
from tablekeeper.timeline.properties_file import (
    create_properties,
    has_table,
    load_table_config,
    refuse_existing_table,
)
from tablekeeper.timeline.transition import create_timeline_directory
from tablekeeper.txn.early_conflict import await_earlier_writer
from tablekeeper.txn.environment import load_examination
from tablekeeper.txn.heartbeat_listing import HeartbeatListing, load_heartbeat_listing
from tablekeeper.txn.locks import LockHolder
from tablekeeper.write.operation import delete_partitions, execute_write
from tablekeeper.write.results import WriteResult

__all__ = ["Table"]


class Table(Maintenance):
    """A Hudi table, to write, read and inspect.

    Make one with `Table.create`, or open an existing one with `Table.open`. Rows go in and come out as Spark
    DataFrames, or as pyarrow tables with `engine="local"`. A `Table` holds no state of the table itself: every
    call sees the table as it is at that moment, and any number of processes may use it at once. A write that conflicts
    with another one raises `ConflictError`; `retries` says how often it is repeated on the new state. `inline` names
    services to run after a write if they are due; the result reports what they did and what failed.
    """

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        schema: Any,
        key: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        ordering: str | Sequence[str] | None = None,
        table_type: str | None = None,
        spark: Any = None,
        engine: str | Engine | None = None,
        options: Mapping[str, object] | None = None,
        storage_options: Mapping[str, str] | None = None,
        runtime: Runtime = SYSTEM_RUNTIME,
        if_not_exists: bool = False,
    ) -> Table:
        """Create a new table. With `if_not_exists` an existing table is opened, if it matches the arguments.

        `key` identifies a row (inside its partition), `ordering` decides which of two versions of a row is the
        newer one; without it, the one written later. `table_type` is "mor" (merge on read: updates go into logs; the
        default) or "cow" (copy on write: updates rewrite files). `options` have Hudi's names; those about writing are
        remembered for later writers. Java's names for the arguments are used if the arguments are not given.
        """
        checked_flags(if_not_exists=if_not_exists)
        chosen = choose_engine(spark=spark, engine=engine, runtime=runtime)
        new = plan_table(
            name=name,
            schema=chosen.arrow_schema(schema),
            key=key,
            partition_by=partition_by,
            ordering=ordering,
            table_type=table_type,
            options=options,
        )
        storage = open_storage(path, options=storage_options, runtime=runtime)
        if if_not_exists and has_table(storage):
            return cls._open_alike(storage, chosen, new, runtime=runtime)
        refuse_existing_table(storage, timeline_directory=new.config.timeline_directory)
        # Before the table exists: once others can see it, they must find its options too.
        kept = save_writer_options(storage, new.options)
        create_timeline_directory(storage, new.config.timeline_directory)
        try:
            create_properties(storage, {**new.properties, **kept})
        except InvalidRequestError:
            # Somebody else created the table in the meantime.
            forget_writer_options(storage, kept)
            if not if_not_exists:
                raise
            return cls._open_alike(storage, chosen, new, runtime=runtime)
        return cls(storage, chosen, new.options, runtime=runtime)

    @classmethod
    def _open_alike(cls, storage: Storage, engine: Engine, new: NewTable, *, runtime: Runtime) -> Table:
        config = load_table_config(storage)
        refuse_other_table(config, wanted=new.config, path=storage.spec.uri)
        given = understood(new.options, config)
        return cls(storage, engine, given.merged_over(load_writer_options(storage, config)), runtime=runtime)

    @classmethod
    def exists(
        cls,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        runtime: Runtime = SYSTEM_RUNTIME,
    ) -> bool:
        """Whether there is a table at `path`, ours or Java's, even if this release cannot read it."""
        return has_table(open_storage(path, options=storage_options, runtime=checked_runtime(runtime)))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        spark: Any = None,
        engine: str | Engine | None = None,
        options: Mapping[str, object] | None = None,
        storage_options: Mapping[str, str] | None = None,
        runtime: Runtime = SYSTEM_RUNTIME,
        progress: Progress | None = None,
    ) -> Table:
        """Open an existing table, ours or another program's. `options` override those that the table was created with.

        `progress` is called after each task on the local engine: with a label, tasks done, and tasks in total.
        """
        chosen = choose_engine(spark=spark, engine=engine, runtime=runtime, progress=progress)
        storage = open_storage(path, options=storage_options, runtime=runtime)
        config = load_table_config(storage)
        merged = understood(Options(options), config).merged_over(load_writer_options(storage, config))
        return cls(storage, chosen, merged, runtime=runtime)

    @property
    def schema(self) -> Any:
        """Columns of the table as reads return them, as the engine's kind of schema, without Hudi's meta columns."""
        return self._engine.native_schema(shown_schema(self._load_schema(), self.config))

    def upsert(
        self,
        rows: Frame,
        *,
        extra: Mapping[str, str] | None = None,
        retries: int = 0,
        inline: Sequence[str] = (),
    ) -> WriteResult:
        """Update rows whose key exists, insert the others. A row with `_hoodie_is_deleted` true deletes its key."""
        return self._write(Operation.UPSERT, rows, extra, retries, inline)

    def insert(
        self,
        rows: Frame,
        *,
        extra: Mapping[str, str] | None = None,
        retries: int = 0,
        inline: Sequence[str] = (),
    ) -> WriteResult:
        """Add rows without looking up their keys; small files are filled first."""
        return self._write(Operation.INSERT, rows, extra, retries, inline)

    def bulk_insert(
        self,
        rows: Frame,
        *,
        extra: Mapping[str, str] | None = None,
        retries: int = 0,
        inline: Sequence[str] = (),
    ) -> WriteResult:
        """Add rows as new files, as fast as possible: the way to load a table for the first time."""
        return self._write(Operation.BULK_INSERT, rows, extra, retries, inline)

    def delete(
        self,
        keys: Frame,
        *,
        extra: Mapping[str, str] | None = None,
        retries: int = 0,
        inline: Sequence[str] = (),
    ) -> WriteResult:
        """Delete rows. `keys` has the key and partition columns; other columns are ignored."""
        return self._write(Operation.DELETE, keys, extra, retries, inline)

    def insert_overwrite(
        self,
        rows: Frame,
        *,
        extra: Mapping[str, str] | None = None,
        retries: int = 0,
        inline: Sequence[str] = (),
    ) -> WriteResult:
        """Replace all rows of the partitions that occur in `rows`."""
        return self._write(Operation.INSERT_OVERWRITE, rows, extra, retries, inline)

    def insert_overwrite_table(
        self,
        rows: Frame,
        *,
        extra: Mapping[str, str] | None = None,
        retries: int = 0,
        inline: Sequence[str] = (),
    ) -> WriteResult:
        """Replace all rows of the table."""
        return self._write(Operation.INSERT_OVERWRITE_TABLE, rows, extra, retries, inline)

    def delete_partitions(self, partitions: Sequence[str]) -> WriteResult:
        """Delete all rows of these partitions, given as partition paths (`city=sf`, or `sf`, as the table has them)."""
        names = checked_names("partitions", partitions)
        if not names:
            raise InvalidRequestError("delete_partitions takes a list of partition paths, for example ['city=sf']")
        return delete_partitions(self._load_write(Operation.DELETE_PARTITION, None), names)

    def write_stream(
        self,
        rows: Frame,
        *,
        checkpoint: str | os.PathLike[str],
        operation: str = "upsert",
        trigger: str | Mapping[str, Any] | None = None,
        query_name: str | None = None,
        output_mode: str = "append",
        retries: int = 3,
    ) -> Any:
        """Write a streaming DataFrame, each batch exactly once across restarts; returns Spark's `StreamingQuery`.

        `checkpoint` is the directory in which Spark stores the progress of the stream; a new one starts from the
        beginning. `trigger` is a processing time (`"10 seconds"`) or arguments of Spark's trigger (`{"availableNow":
        True}`).
        """

        def write(kind: Operation, batch: Frame, extra: Mapping[str, str]) -> WriteResult:
            return self._write(kind, batch, extra, retries)

        request = StreamRequest(checkpoint, operation, trigger, query_name, output_mode)
        return start_stream(
            rows, request, storage=self._storage, engine=self._engine, runtime=self._runtime, write=write
        )

    def read(
        self,
        *,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        as_of: object = None,
        mode: str = "snapshot",
        meta_columns: bool = False,
    ) -> Frame:
        """Rows of the table.

        `where` is a SQL condition and prunes partitions and files. `as_of` is a past moment: an instant time, an
        ISO date or time, or a datetime. `mode="read_optimized"` reads base files only, without merging logs.
        `meta_columns` adds Hudi's own columns.
        """
        query = self._load_query(columns=columns, where=where, as_of=as_of, mode=mode, meta_columns=meta_columns)
        return read_rows(query, self._engine, load_query_snapshot(query).latest)

    def changes(
        self,
        *,
        since: object = None,
        until: object = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        meta_columns: bool = False,
    ) -> Frame:
        """Rows changed by commits that completed after `since`, up to and including `until`.

        Bounds are instants of this table (a result's `instant`), completion times, ISO times or datetimes; "earliest"
        is before the first commit. `changes_since` returns the same rows with a cursor for the next call.
        """
        return self.changes_since(since, until=until, columns=columns, where=where, meta_columns=meta_columns).rows

    def changes_since(
        self,
        cursor: object,
        *,
        until: object = None,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        meta_columns: bool = False,
    ) -> Changes:
        """The `rows` of `changes(since=cursor)`, and the `next` cursor: a text from which the next call continues.

        Begin with "earliest". Rows and cursor come from the same snapshot: no commit is missed between two calls.
        """
        query = self._load_query(columns=columns, where=where, meta_columns=meta_columns)
        commits = load_window(query, since=cursor, until=until)
        rows = read_changes(query, self._engine, commits)
        return Changes(rows, next_cursor(commits, since=cursor, zone=query.config.time_zone))

    def timeline(self) -> TimelineListing:
        """The instants of the active timeline."""
        return TimelineListing(self._load_timeline().instants)

    def files(self, *, as_of: object = None, partitions: Iterable[str] | None = None) -> FileListing:
        """The file slices that a reader sees now, or saw at a past moment."""
        config = self.config
        snapshot = load_snapshot(
            self._storage,
            config,
            load_timeline(self._storage, config),
            runtime=self._runtime,
            partitions=None if partitions is None else checked_names("partitions", partitions),
            as_of=moment_as_of(as_of, config),
        )
        return FileListing(snapshot.latest)

    def describe(self) -> TableDescription:
        """Properties and size of the table, and its last commit."""
        config = self.config
        timeline = load_timeline(self._storage, config)
        snapshot = load_snapshot(self._storage, config, timeline, runtime=self._runtime)
        schema = shown_schema(load_table_schema(self._storage, config, timeline), config)
        return describe_table(self.path, config, timeline, snapshot, schema)

    def rollback(self, instant: object, *, dry_run: bool = False) -> RollbackResult:
        """Undo a write: one that a dead process left pending, or the newest completed one.

        `dry_run` only reports what would be deleted. A pending compaction or clustering returns to requested, and its
        plan stays. A completed write with later ones is refused: roll those back first, or `restore` to a savepoint.
        """
        checked_flags(dry_run=dry_run)
        with self._rebuilding_record_index() as notes:
            result = execute_rollback(self._load_environment(), parse_instant(instant), dry_run=dry_run)
        return replace(result, notes=tuple(notes))

    def savepoint(self, instant: object = None, *, comment: str = "") -> Savepoint:
        """Protect the files of the newest or the given commit from cleans, so that `restore` can return to it."""
        checked_text("comment", comment)
        return create_savepoint(
            self._load_environment(), None if instant is None else parse_instant(instant), comment=comment
        )

    def savepoints(self) -> SavepointListing:
        """The savepoints of the table."""
        return load_savepoints(self._load_environment())

    def delete_savepoint(self, savepoint: object) -> None:
        """Give up a savepoint. The commit stays; its files are cleaned when they are old enough."""
        delete_savepoint(self._load_environment(), parse_instant(savepoint))

    def restore(self, savepoint: object, *, dry_run: bool = False) -> RestoreResult:
        """Return the table to a savepoint: every later commit is rolled back permanently. Stop all writers first."""
        checked_flags(dry_run=dry_run)
        with self._rebuilding_record_index() as notes:
            result = restore_savepoint(self._load_environment(), parse_instant(savepoint), dry_run=dry_run)
        return replace(result, notes=tuple(notes))

    def doctor(
        self, *, fix: bool = False, yes: bool = False, deep: bool = False, safe_age_s: float = 3600.0
    ) -> DoctorReport:
        """Examine the table: dead writes and plans, stray files, a stale metadata table, locks that do not protect.

        `fix` makes the safe repairs; without it `report.repairs` lists them. Stray data files are deleted only if they
        are older than `safe_age_s`, and only with `yes` if there are more than a few of them, or a tenth of the table.
        `deep` also reads every visible base file, with the checksums of its pages.
        """
        checked_flags(fix=fix, yes=yes, deep=deep)
        checked_seconds("safe_age_s", safe_age_s)
        environment = load_examination(self._storage, self._options, runtime=self._runtime)
        settings = DoctorSettings.from_options(self._options.given, safe_age_s=safe_age_s, deletes_many=yes, deep=deep)
        report = examine_table(environment, settings)
        if not fix or not report.repairs:
            return report
        remedies = Remedies(finish_cleans=finish_cleans, execute_rollback=execute_rollback)
        return repair_table(self._load_environment(), report, settings, remedies)

    def lock_holder(self) -> LockHolder | None:
        """Who holds the table lock now; None if it is free."""
        return load_examination(self._storage, self._options, runtime=self._runtime).lock.describe()

    def heartbeats(self) -> HeartbeatListing:
        """The heartbeats of running and dead writes."""
        return load_heartbeat_listing(load_examination(self._storage, self._options, runtime=self._runtime))

    def _write(
        self,
        operation: Operation,
        source: Frame,
        extra: Mapping[str, str] | None,
        retries: int,
        inline: Sequence[str] = (),
    ) -> WriteResult:
        retries, extra = checked_count("retries", retries), checked_extra(extra)
        services = tuple(map(InlineService, service_names(inline))) if inline else self._inline
        hosting = self._hosting
        source = self._engine.incoming(source)
        if retries and isinstance(source, pa.RecordBatchReader):
            # A reader can be read only once; a second attempt needs its rows again.
            with rows_reported():
                source = source.read_all()
        while True:
            try:
                with rows_reported():
                    result = self._write_once(operation, source, extra)
                break
            except ConflictError as error:
                if retries <= 0:
                    raise
                retries -= 1
                await_earlier_writer(self._load_environment(), error)
        # A service that is named in the call runs here.
        hosted = hosting.services - {each.name for each in services if inline}
        if not services and not hosted:
            return result
        return run_after_write(result, services, hosting, self._run_inline, hosted=hosted)

    def _write_once(self, operation: Operation, source: Frame, extra: Mapping[str, str] | None) -> WriteResult:
        # Before the rows are read: a batch of a stream that is already in the table costs nothing more.
        look = self._look()
        refuse = load_batch_guard(self._storage, look.config, extra) if extra else None
        request = self._load_write(operation, self._engine.schema_of(source), extra=extra, look=look)
        return execute_write(replace(request, refuse=refuse) if refuse else request, source)

    def _load_query(
        self,
        *,
        columns: Iterable[str] | None = None,
        where: str | Predicate | None = None,
        as_of: object = None,
        mode: str = "snapshot",
        meta_columns: bool = False,
    ) -> Query:
        """The query of `read` with these arguments, before any listing: for callers that run tasks themselves."""
        checked_flags(meta_columns=meta_columns)
        if mode not in ("snapshot", "read_optimized"):
            raise InvalidRequestError(f"mode={mode!r}: use 'snapshot' or 'read_optimized'")
        look = self._look()
        moment = moment_as_of(as_of, config := look.config)
        timeline, (schema, known) = load_timeline_beside(
            self._storage,
            config,
            lambda timeline: load_schema_and_commits(self._storage, config, timeline, as_of=moment),
            runtime=self._runtime,
            names=look.names,
        )
        if moment is not None:
            refuse_cleaned_moment(self._storage, config, timeline, moment)
        return Query(
            storage=self._storage,
            config=config,
            timeline=timeline,
            schema=schema,
            known=known,
            runtime=self._runtime,
            columns=None if columns is None else tuple(checked_names("columns", columns)),
            predicate=_predicate(checked_condition("where", where)),
            as_of=moment,
            mode=mode,
            with_meta_columns=meta_columns,
        )


def _predicate(where: str | Predicate | None) -> Predicate | None:
    if isinstance(where, str):
        return parse_predicate(where) if where else None
    return where
