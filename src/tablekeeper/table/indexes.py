"""`Indexes`: indexes of an open table, built and dropped on request."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.config.metadata_settings import RecordIndexSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.model import Operation
from tablekeeper.services.indexing.record_index import IndexResult, create_record_index, drop_record_index
from tablekeeper.table.claims import understood
from tablekeeper.table.handle import TableHandle
from tablekeeper.timeline import FirstLook
from tablekeeper.txn.environment import load_environment
from tablekeeper.write.prepare import WriteRequest, prepare_write

__all__ = ["Indexes"]

_LOG = logging.getLogger(__name__)
_RECORD = "record"


class Indexes(TableHandle):
    """Indexes of the metadata table that are built here: the record index."""

    def create_index(self, kind: str = _RECORD, *, options: Mapping[str, object] | None = None) -> IndexResult:
        """Build the record index (`"record"`), and a metadata table where there is none; writes then find keys by it.

        Its keys are those of the whole table: one that is there twice, in two partitions for instance, stops it. Every
        write keeps it in step from then on, Java's writers too.
        """
        _refuse_other(kind)
        given = self._merged(options)
        environment = load_environment(self._storage, given, runtime=self._runtime)
        request = prepare_write(environment, self._engine, given, Operation.INDEX, incoming=None, extra={})
        settings = RecordIndexSettings.from_options(given.given)
        return create_record_index(environment, self._engine, request.context, settings)

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
        look = look or self._look()
        wants_index = incoming is not None and RecordIndexSettings.from_options(self._options.given).is_wanted
        if wants_index and RECORD_INDEX not in look.config.metadata_partitions:
            _LOG.info("%s: %r, as the options ask", self.path, self.create_index())
            look = self._look()
        return super()._load_write(operation, incoming, extra=extra, look=look)

    @contextmanager
    def _rebuilding_record_index(self) -> Iterator[None]:
        """Around what takes commits back: a record index that could not forget them was dropped, and is built anew."""
        had_index = RECORD_INDEX in self.config.metadata_partitions
        yield
        if had_index and RECORD_INDEX not in self.config.metadata_partitions and not self._options.flag(INDEX_DROP):
            _LOG.warning("%s: %r", self.path, self.create_index())

    def _merged(self, options: Mapping[str, object] | None) -> Options:
        given = Options(options)
        if given.claims or given.idle:
            understood(given, self.config)
        return given.merged_over(self._options)


def _refuse_other(kind: str) -> None:
    if kind != _RECORD:
        raise InvalidRequestError(f"index {kind!r}: the one that is built and dropped here is 'record'.")
