"""A `WriteContext` for tests of single kernels: a table in memory that nobody else uses."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pyarrow as pa

from tablekeeper.config.table_config import MergeMode
from tablekeeper.config.write_settings import WriteSettings
from tablekeeper.format.avro_arrow import arrow_to_avro_schema, with_meta_columns
from tablekeeper.model import RequestedTime
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import MergeRule
from tablekeeper.record.partition_paths import PartitionField, PartitionSpec
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import MemoryStorage
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.txn.attempts import take_attempt
from tablekeeper.write.context import WriteContext
from tests.support.table_builder import TRIPS

__all__ = ["begun", "make_context"]


def make_context(*, schema: pa.Schema = TRIPS, **changes: Any) -> WriteContext:
    """Key `id`, partitions by `city`, event time `ts`; `changes` replace fields of the context."""
    fields: dict[str, Any] = {
        "store": StorageHandle(MemoryStorage(f"memory://context-{uuid4()}/table")),
        "staging": ".hoodie/.tablekeeper/staging/test",
        "schema": schema,
        "avro_schema": _avro(with_meta_columns(schema)),
        "table_schema": _avro(schema),
        "key": KeySpec(("id",), composite=False),
        "partition": PartitionSpec((PartitionField("city"),)),
        "rule": MergeRule(MergeMode.EVENT_TIME, ("ts",)),
        "settings": WriteSettings.of_table({}, key_fields=("id",)),
        "runtime": SYSTEM_RUNTIME,
        "instant": "20240101000000000",
    }
    return WriteContext(**(fields | changes))


def begun(context: WriteContext) -> WriteContext:
    """The context of an attempt at the plan `context.instant`, with a heartbeat that lasts as long as its file."""
    storage, instant = context.store.storage, RequestedTime(context.instant)
    attempt = take_attempt(storage, instant, runtime=context.runtime)
    storage.put(f".hoodie/.heartbeat/{instant}", attempt.owner.encode())
    return context.for_attempt(attempt, is_plan=True)


def _avro(schema: pa.Schema) -> str:
    return json.dumps(arrow_to_avro_schema(schema, record_name="trips_record", namespace="hoodie.trips"))
