"""`TableHandle`: what every operation on an open table needs, and how it begins."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tablekeeper.config.keys import BLOCKS_SPECULATION
from tablekeeper.config.options import Options
from tablekeeper.config.table_config import TableConfig
from tablekeeper.engine.protocol import Engine
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import Operation, RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.snapshot.schema import load_table_schema
from tablekeeper.storage import Storage
from tablekeeper.timeline import FirstLook, Timeline, load_first_look, load_timeline
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment, load_environment
from tablekeeper.write.prepare import WriteRequest, prepare_write

__all__ = ["TableHandle", "parse_instant", "refuse_speculation"]


class TableHandle:
    """An open table: where it lies, the engine that works on it, and the options of this caller."""

    def __init__(self, storage: Storage, engine: Engine, options: Options, *, runtime: Runtime) -> None:
        self._storage = storage
        self._engine = engine
        self._options = options
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._storage.spec.uri!r}, engine={self._engine.name!r})"

    @property
    def path(self) -> str:
        """Where the table lies, as a canonical URI."""
        return self._storage.spec.uri

    @property
    def config(self) -> TableConfig:
        """What the table's properties file says now."""
        return load_table_config(self._storage)

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
        """What an operation of this table begins with."""
        return load_first_look(self._storage, runtime=self._runtime)

    def _load_environment(self, config: TableConfig | None = None) -> TableEnvironment:
        refuse_speculation(self._options, speculates=self._engine.speculates)
        return load_environment(self._storage, self._options, runtime=self._runtime, config=config)

    def _load_schema(self) -> pa.Schema:
        config = self.config
        return load_table_schema(self._storage, config, load_timeline(self._storage, config))

    def _load_timeline(self) -> Timeline:
        return load_timeline(self._storage, self.config)


def refuse_speculation(options: Options, *, speculates: bool) -> None:
    """As Java does: a copy of a slow task may write its files late, which not every store can prevent."""
    if speculates and options.flag(BLOCKS_SPECULATION):
        raise InvalidRequestError(
            "spark.speculation is on, and a table is not changed under it unless you ask for it. Start the session "
            f"with spark.speculation=false, or set the option {BLOCKS_SPECULATION} to false."
        )


def parse_instant(value: object) -> RequestedTime:
    """An instant as callers have it: its time as text, or anything that carries it as `instant` or `requested_at`."""
    for name in ("instant", "requested_at"):
        value = getattr(value, name, value)
    if isinstance(value, RequestedTime):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return RequestedTime(value)
    raise InvalidRequestError(f"{value!r} is not an instant: give its requested time, as `Table.timeline()` shows it.")
