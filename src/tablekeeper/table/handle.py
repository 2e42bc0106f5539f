"""`TableHandle`: what every operation on an open table needs, and the record index."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa

from tablekeeper.config.keys import BLOCKS_SPECULATION, INDEX_DROP
from tablekeeper.config.metadata_settings import RecordIndexSettings
from tablekeeper.config.options import Options
from tablekeeper.config.table_config import TableConfig
from tablekeeper.engine.protocol import Engine
from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.model import Operation, RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.services.indexing.record_index import (
    IndexResult,
    create_record_index,
    drop_record_index,
    has_partitioned_index,
)
from tablekeeper.snapshot.schema import load_table_schema
from tablekeeper.storage import Storage
from tablekeeper.table.automatic_services import Hosting, InlineService, inline_services
from tablekeeper.table.claims import understood
from tablekeeper.timeline import FirstLook, Timeline, load_first_look, load_timeline
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment, load_environment
from tablekeeper.write.prepare import WriteRequest, prepare_write

__all__ = [
    "TableHandle",
    "parse_instant",
    "refuse_speculation",
]

_LOG = logging.getLogger(__name__)
_RECORD = "record"


class TableHandle:
    """An open table: its storage, the engine, the options of this caller, and its record index."""

    def __init__(self, storage: Storage, engine: Engine, options: Options, *, runtime: Runtime) -> None:
        self._storage = storage
        self._engine = engine
        self._options = options
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._storage.spec.uri!r}, engine={self._engine.name!r})"

    @property
    def path(self) -> str:
        """The path of the table, as a canonical URI."""
        return self._storage.spec.uri

    @property
    def config(self) -> TableConfig:
        """The present contents of the table's properties file."""
        return load_table_config(self._storage)

    def create_index(self, kind: str = _RECORD, *, options: Mapping[str, object] | None = None) -> IndexResult:
        """Build the record index (`"record"`), and a metadata table if there is none; writes then look up keys in it.

        The index is global: a duplicate key, for instance in two partitions, is an error. The option
        `hoodie.metadata.record.level.index.enable` makes it one by partitions, which may have the same keys. From then
        on every write updates it, also writes by Java.
        """
        _refuse_other(kind)
        given = self._merged(options)
        settings = RecordIndexSettings.from_options(given.given)
        return self._build_index(given, settings, by_partition=settings.is_wanted_by_partition)

    def _build_index(self, given: Options, settings: RecordIndexSettings, *, by_partition: bool) -> IndexResult:
        environment = load_environment(self._storage, given, runtime=self._runtime)
        request = prepare_write(environment, self._engine, given, Operation.INDEX, incoming=None, extra={})
        return create_record_index(environment, self._engine, request.context, settings, by_partition=by_partition)

    def drop_index(self, kind: str = _RECORD) -> IndexResult:
        """Drop the record index (`"record"`): keys are looked up in the files again."""
        _refuse_other(kind)
        return drop_record_index(self._load_environment())

    def _load_write(
        self,
        operation: Operation,
        incoming: pa.Schema | None,
        *,
        extra: Mapping[str, str] | None = None,
        look: FirstLook | None = None,
    ) -> WriteRequest:
        """A checked write of rows with this schema, not begun yet: for callers that stage the rows themselves."""
        look = look or self._look()
        settings = RecordIndexSettings.from_options(self._options.given)
        wants_index = incoming is not None and (settings.is_wanted or settings.is_wanted_by_partition)
        if wants_index and RECORD_INDEX not in look.config.metadata_partitions:
            _LOG.info("%s: %r, as the options ask", self.path, self.create_index())
            look = self._look()
        return prepare_write(
            self._load_environment(look.config),
            self._engine,
            self._options,
            operation,
            incoming=incoming,
            extra=extra or {},
            names=look.names,
        )

    def _look(self) -> FirstLook:
        """The beginning of every operation: properties and timeline."""
        return load_first_look(self._storage, runtime=self._runtime)

    def _load_environment(self, config: TableConfig | None = None) -> TableEnvironment:
        refuse_speculation(self._options, speculates=self._engine.speculates)
        return load_environment(self._storage, self._options, runtime=self._runtime, config=config)

    def _load_schema(self) -> pa.Schema:
        config = self.config
        return load_table_schema(self._storage, config, load_timeline(self._storage, config))

    def _load_timeline(self) -> Timeline:
        return load_timeline(self._storage, self.config)

    @cached_property
    def _hosting(self) -> Hosting:
        """What the options leave to the Table Management Service; wrong settings are refused here."""
        return Hosting(self._storage, self._options, self._runtime)

    @cached_property
    def _inline(self) -> tuple[InlineService, ...]:
        """What the options ask for after every write."""
        return inline_services(self._options)

    @contextmanager
    def _rebuilding_record_index(self) -> Iterator[list[str]]:
        """Rebuilds the record index if the block dropped it: it cannot always follow the rollback of a commit.

        If it cannot be rebuilt, the rollback still counts, and a note in the yielded list says so.
        """
        config = self.config
        had_index = RECORD_INDEX in config.metadata_partitions
        by_partition = had_index and has_partitioned_index(self._storage, config)
        notes: list[str] = []
        yield notes
        try:
            if had_index and RECORD_INDEX not in self.config.metadata_partitions and not self._options.flag(INDEX_DROP):
                settings = RecordIndexSettings.from_options(self._options.given)
                result = self._build_index(self._options, settings, by_partition=by_partition)
                _LOG.warning("%s: %r", self.path, result)
        except TablekeeperError as error:
            notes.append(
                f"the record index was dropped and could not be rebuilt ({error}); keys are looked up in the files "
                "until create_index builds it"
            )
            _LOG.warning("%s: %s", self.path, notes[-1])

    def _merged(self, options: Mapping[str, object] | None) -> Options:
        given = Options(options)
        if given.claims or given.idle:
            understood(given, self.config)
        return given.merged_over(self._options)


def refuse_speculation(options: Options, *, speculates: bool) -> None:
    """As in Java: a speculative copy of a task may write its files late, which not every store can prevent."""
    if speculates and options.flag(BLOCKS_SPECULATION):
        raise InvalidRequestError(
            "spark.speculation is on, and a table is not changed under it unless you ask for it. Start the session "
            f"with spark.speculation=false, or set the option {BLOCKS_SPECULATION} to false."
        )


def parse_instant(value: object) -> RequestedTime:
    """An instant from a caller: its time as text, or any object that has it as `instant` or `requested_at`."""
    for name in ("instant", "requested_at"):
        value = getattr(value, name, value)
    if isinstance(value, RequestedTime):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return RequestedTime(value)
    raise InvalidRequestError(f"{value!r} is not an instant: give its requested time, as `Table.timeline()` shows it.")


def _refuse_other(kind: str) -> None:
    if kind != _RECORD:
        raise InvalidRequestError(f"index {kind!r}: the only index that can be built and dropped is 'record'.")
