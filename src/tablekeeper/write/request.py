"""A write as its caller asked for it, checked and not begun yet; and what follows from its operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tablekeeper.config.write_settings import IndexKind
from tablekeeper.engine.protocol import Engine
from tablekeeper.format.plans import RequestedReplaceMetadata, encode_requested_replace_metadata
from tablekeeper.metadata_table.update import MetadataPolicy
from tablekeeper.model import Action, Operation
from tablekeeper.runtime import Runtime
from tablekeeper.timeline import Timeline
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.schema import KnownSchema

__all__ = ["WriteRequest"]


@dataclass(frozen=True)
class WriteRequest:
    """A write as asked for. `extra` goes into the commit's metadata; `known_schema` is what it was planned on.

    `refuse` is asked under the commit's lock, on the timeline as it is then, and raises if the write is not wanted.
    """

    environment: TableEnvironment
    engine: Engine
    context: WriteContext
    operation: Operation
    extra: dict[str, str]
    policy: MetadataPolicy
    known_schema: KnownSchema
    refuse: Callable[[Timeline], None] = lambda _: None

    @property
    def runtime(self) -> Runtime:
        return self.environment.runtime

    @property
    def is_mor(self) -> bool:
        return self.environment.config.is_mor

    @property
    def replaces(self) -> bool:
        return self.operation in (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE)

    @property
    def combines(self) -> bool:
        settings = self.context.settings
        if self.operation is Operation.UPSERT:
            return settings.combine_before_upsert
        if self.operation is Operation.DELETE:
            return settings.combine_before_delete
        return settings.combine_before_insert

    @property
    def looks_up_keys(self) -> bool:
        """Whether rows that are there already decide what becomes of the rows given."""
        return self.operation in (Operation.UPSERT, Operation.DELETE)

    @property
    def is_bulk(self) -> bool:
        return self.operation is Operation.BULK_INSERT

    @property
    def has_buckets(self) -> bool:
        return self.context.settings.index is IndexKind.BUCKET

    @property
    def tags_keys(self) -> bool:
        """Whether keys are looked for in the files. With the bucket index the hash tells where one can be."""
        return self.looks_up_keys and not self.has_buckets

    @property
    def uses_record_index(self) -> bool:
        """Whether the record index is asked where keys are: where there is one, unless another index was named."""
        settings = self.context.settings
        asks = settings.index is IndexKind.RECORD_INDEX or not settings.names_index
        return self.tags_keys and self.policy.has_record_index and asks

    @property
    def writes_directly(self) -> bool:
        """Rows that need no file group found for them go straight into new files."""
        gathers = self.is_bulk and self.context.settings.bulk_insert_sort.gathers_partitions
        return (self.is_bulk or self.replaces) and not (self.has_buckets or self.combines or gathers)

    @property
    def action(self) -> Action:
        if self.replaces or self.operation is Operation.DELETE_PARTITION:
            return Action.REPLACE_COMMIT
        return Action.DELTA_COMMIT if self.is_mor else Action.COMMIT

    @property
    def plan(self) -> bytes:
        if self.action is not Action.REPLACE_COMMIT:
            return b""
        return encode_requested_replace_metadata(RequestedReplaceMetadata(operation=self.operation))
