"""The properties of a new table: from what `Table.create` takes to the contents of hoodie.properties."""

from __future__ import annotations

from collections.abc import Sequence

from tablekeeper.config.options import Options
from tablekeeper.config.table_config import CURRENT_VERSION, MergeMode, TableType
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = [
    "CHECKSUM_KEY",
    "DATABASE_KEY",
    "METADATA_INFLIGHT_KEY",
    "METADATA_PARTITIONS_KEY",
    "NAME_KEY",
    "new_metadata_properties",
    "new_table_properties",
]

CHECKSUM_KEY = "hoodie.table.checksum"
DATABASE_KEY = "hoodie.database.name"
NAME_KEY = "hoodie.table.name"
METADATA_PARTITIONS_KEY = "hoodie.table.metadata.partitions"
METADATA_INFLIGHT_KEY = "hoodie.table.metadata.partitions.inflight"

_KEPT_PREFIX = "hoodie.keygen.timebased."
_TYPES = {"cow": TableType.COPY_ON_WRITE, "mor": TableType.MERGE_ON_READ} | {
    kind.value.lower(): kind for kind in TableType
}


def new_table_properties(
    *,
    name: str,
    table_type: str,
    keys: Sequence[str],
    partitions: Sequence[str],
    ordering: Sequence[str],
    avro_schema: str,
    options: Options,
) -> dict[str, str]:
    """Properties of a table of the current version, without its checksum."""
    if not name:
        raise InvalidRequestError("a table needs a name: pass name='…'")
    kind = _TYPES.get(table_type.lower())
    if kind is None:
        raise InvalidRequestError(f"table_type {table_type!r}: use 'cow' (copy on write) or 'mor' (merge on read)")
    properties = {
        "hoodie.table.name": name,
        "hoodie.table.type": kind.value,
        "hoodie.table.version": str(CURRENT_VERSION),
        "hoodie.table.initial.version": str(CURRENT_VERSION),
        "hoodie.timeline.layout.version": "2",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.table.format": "native",
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.table.recordkey.fields": ",".join(keys),
        "hoodie.table.keygenerator.type": _key_generator(options, keys=keys, partitions=partitions),
        "hoodie.record.merge.mode": _merge_mode(options, ordering=ordering).value,
        "hoodie.datasource.write.hive_style_partitioning": _flag(options, "hive_style_partitioning"),
        "hoodie.datasource.write.partitionpath.urlencode": _flag(options, "partitionpath.urlencode"),
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.populate.meta.fields": "true",
        "hoodie.table.timeline.timezone": options.required_text("hoodie.table.timeline.timezone").upper(),
        "hoodie.table.create.schema": avro_schema,
    }
    database = options.text("hoodie.database.name")
    if database:
        properties["hoodie.database.name"] = database
    if partitions:
        properties["hoodie.table.partition.fields"] = ",".join(partitions)
    if ordering:
        properties["hoodie.table.ordering.fields"] = ",".join(ordering)
    properties.update({k: v for k, v in options.given.items() if k.startswith(_KEPT_PREFIX)})
    return properties


def new_metadata_properties(*, name: str, version: int, checksum: str) -> dict[str, str]:
    """Properties of the metadata table `name` of a table of this version, as Java gives them to it."""
    return {
        "hoodie.table.name": name,
        "hoodie.table.type": TableType.MERGE_ON_READ.value,
        "hoodie.table.version": str(version),
        "hoodie.table.initial.version": str(version),
        "hoodie.timeline.layout.version": "2",
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "history",
        "hoodie.table.base.file.format": "HFILE",
        "hoodie.table.recordkey.fields": "key",
        "hoodie.table.keygenerator.type": "HOODIE_TABLE_METADATA",
        "hoodie.populate.meta.fields": "false",
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.record.merge.mode": "CUSTOM",
        "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
        "hoodie.compaction.payload.class": "org.apache.hudi.metadata.HoodieMetadataPayload",
        CHECKSUM_KEY: checksum,
    }


def _flag(options: Options, name: str) -> str:
    return "true" if options.flag(f"hoodie.datasource.write.{name}") else "false"


def _key_generator(options: Options, *, keys: Sequence[str], partitions: Sequence[str]) -> str:
    asked = options.text("hoodie.table.keygenerator.type")
    if asked is not None:
        known = ("SIMPLE", "COMPLEX", "TIMESTAMP", "CUSTOM", "NON_PARTITION")
        if asked.upper() not in known:
            raise UnsupportedFeatureError(f"key generator {asked}: use one of {', '.join(known)}, or leave it out")
        return asked.upper()
    if not partitions:
        return "NON_PARTITION"
    return "COMPLEX" if len(keys) > 1 or len(partitions) > 1 else "SIMPLE"


def _merge_mode(options: Options, *, ordering: Sequence[str]) -> MergeMode:
    asked = options.text("hoodie.record.merge.mode")
    if asked is None:
        return MergeMode.EVENT_TIME if ordering else MergeMode.COMMIT_TIME
    try:
        mode = MergeMode(asked.upper())
    except ValueError:
        raise InvalidRequestError(
            f"hoodie.record.merge.mode {asked!r}: use EVENT_TIME_ORDERING or COMMIT_TIME_ORDERING"
        ) from None
    if mode is MergeMode.CUSTOM:
        raise UnsupportedFeatureError(
            "custom mergers run in Java only: choose EVENT_TIME_ORDERING or COMMIT_TIME_ORDERING"
        )
    if mode is MergeMode.EVENT_TIME and not ordering:
        raise InvalidRequestError("EVENT_TIME_ORDERING needs an ordering column: pass ordering='…'")
    return mode
