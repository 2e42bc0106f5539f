"""`TableConfig`: the contents of hoodie.properties as typed values.

The raw properties are kept, so that a rewrite of the file loses nothing that this version does
not know.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError

__all__ = [
    "CURRENT_VERSION",
    "MergeMode",
    "PartitionKind",
    "TableConfig",
    "TableType",
    "key_generator_type",
    "parse_table_config",
]

CURRENT_VERSION = 9
_READABLE_VERSIONS = (6, 8, 9)

_EVENT_TIME_STRATEGY = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
_COMMIT_TIME_STRATEGY = "ce9acb64-bde0-424c-9b91-f6ebba25356d"

_GENERATORS = {
    "Simple": "SIMPLE",
    "Complex": "COMPLEX",
    "TimestampBased": "TIMESTAMP",
    "Custom": "CUSTOM",
    "Nonpartitioned": "NON_PARTITION",
    "GlobalDelete": "GLOBAL_DELETE",
}


class TableType(enum.Enum):
    """How updates are stored; the value is Hudi's word in hoodie.properties."""

    COPY_ON_WRITE = "COPY_ON_WRITE"
    MERGE_ON_READ = "MERGE_ON_READ"


class MergeMode(enum.Enum):
    """Which of two versions of a row wins: the later written, or the one with the greater ordering value."""

    COMMIT_TIME = "COMMIT_TIME_ORDERING"
    EVENT_TIME = "EVENT_TIME_ORDERING"
    CUSTOM = "CUSTOM"


class PartitionKind(enum.Enum):
    """How a partition field's value becomes a path segment."""

    SIMPLE = "SIMPLE"
    TIMESTAMP = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class TableConfig:
    """What a table is, as its properties file says."""

    name: str
    database: str
    table_type: TableType
    version: int
    layout: int
    key_fields: tuple[str, ...]
    composite_key: bool
    partition_fields: tuple[tuple[str, PartitionKind], ...]
    ordering_fields: tuple[str, ...]
    merge_mode: MergeMode
    hive_style: bool
    url_encode: bool
    slash_separated_dates: bool
    drops_partition_columns: bool
    has_meta_columns: bool
    timeline_directory: str
    history_directory: str
    time_zone: str
    metadata_partitions: tuple[str, ...]
    metadata_partitions_inflight: tuple[str, ...]
    create_schema: str | None
    key_generator: str
    properties: Mapping[str, str] = field(repr=False, compare=False)

    @property
    def is_mor(self) -> bool:
        return self.table_type is TableType.MERGE_ON_READ

    @property
    def is_partitioned(self) -> bool:
        return bool(self.partition_fields)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.partition_fields)

    @property
    def has_timestamp_partitions(self) -> bool:
        """Whether Hudi's timestamp-based key generator makes the partitions; a custom one may do so for some fields."""
        return self.key_generator == "TIMESTAMP"

    @property
    def keeps_change_log(self) -> bool:
        """Whether writers of the table put before and after images of rows beside the data (CDC)."""
        return _flag(self.properties, "hoodie.table.cdc.enabled")

    @property
    def special_merging(self) -> str | None:
        """What the table asks of merges beyond ordering by time, as its properties say it; None if nothing."""
        mode = self.properties.get("hoodie.table.partial.update.mode", "")
        if mode.upper() not in ("", "NONE"):
            return f"hoodie.table.partial.update.mode={mode}"
        prefix = "hoodie.record.merge.property."
        marks = [f"{name}={value}" for name, value in self.properties.items() if name.startswith(prefix)]
        return ", ".join(sorted(marks)) or None

    @property
    def has_metadata_table(self) -> bool:
        """True if readers may list files from the metadata table, which writers must then keep in step."""
        return "files" in self.metadata_partitions

    @property
    def old_history_directory(self) -> str:
        """Where the archived timeline of a table lies, or lay, that is or was older than version 8."""
        return ".hoodie/" + (self.properties.get("hoodie.archivelog.folder") or "archived")

    @property
    def may_have_old_log_names(self) -> bool:
        """True if logs may be named after the base file below them: the table is, or began, older than version 8."""
        began_as = self.properties.get("hoodie.table.initial.version", "")
        return self.version < 8 or not began_as.isdigit() or int(began_as) < 8


def parse_table_config(properties: Mapping[str, str], *, file: str) -> TableConfig:
    """Typed view of `properties`; refuses versions that this code does not know."""
    name = properties.get("hoodie.table.name")
    if not name:
        raise CorruptTableError(file=file, reason="hoodie.table.name is missing")
    version = _integer(properties, "hoodie.table.version", default=str(CURRENT_VERSION), file=file)
    if version not in _READABLE_VERSIONS:
        raise UnsupportedFeatureError(
            f"{file}: table version {version}; this release reads versions 6, 8 and 9. "
            + ("Upgrade tablekeeper." if version > CURRENT_VERSION else "Upgrade the table with a newer Hudi writer.")
        )
    generator = _key_generator(properties)
    keys = _fields(properties, "hoodie.table.recordkey.fields")
    base = properties.get("hoodie.table.base.file.format", "PARQUET").upper()
    if base != "PARQUET":
        raise UnsupportedFeatureError(f"{file}: base file format {base}; only PARQUET is supported")
    if properties.get("hoodie.bootstrap.base.path"):
        raise UnsupportedFeatureError(
            f"{file}: the table was bootstrapped from files outside of it, which tablekeeper cannot read. Read it "
            "with Java."
        )
    ordering = _fields(properties, "hoodie.table.ordering.fields") or _fields(
        properties, "hoodie.table.precombine.field"
    )
    timeline = ".hoodie"
    history = ".hoodie/" + (properties.get("hoodie.archivelog.folder") or "archived")
    if version >= 8:
        timeline = ".hoodie/" + (properties.get("hoodie.timeline.path") or "timeline")
        history = timeline + "/" + (properties.get("hoodie.timeline.history.path") or "history")
    return TableConfig(
        name=name,
        database=properties.get("hoodie.database.name", ""),
        table_type=_table_type(properties, file=file),
        version=version,
        layout=_integer(properties, "hoodie.timeline.layout.version", default="2" if version >= 8 else "1", file=file),
        key_fields=keys,
        composite_key=len(keys) > 1 or generator == "COMPLEX",
        partition_fields=_partition_fields(properties, generator, file=file),
        ordering_fields=ordering,
        merge_mode=_merge_mode(properties, ordering=ordering, file=file),
        hive_style=_flag(properties, "hoodie.datasource.write.hive_style_partitioning"),
        url_encode=_flag(properties, "hoodie.datasource.write.partitionpath.urlencode"),
        slash_separated_dates=_flag(properties, "hoodie.datasource.write.slash.separated.date.partitioning"),
        drops_partition_columns=_flag(properties, "hoodie.datasource.write.drop.partition.columns"),
        has_meta_columns=_flag(properties, "hoodie.populate.meta.fields", default="true"),
        timeline_directory=timeline,
        history_directory=history,
        time_zone=properties.get("hoodie.table.timeline.timezone", "LOCAL").upper(),
        metadata_partitions=_fields(properties, "hoodie.table.metadata.partitions"),
        metadata_partitions_inflight=_fields(properties, "hoodie.table.metadata.partitions.inflight"),
        create_schema=properties.get("hoodie.table.create.schema"),
        key_generator=generator,
        properties=dict(properties),
    )


def _fields(properties: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in properties.get(key, "").split(",") if part.strip())


def _flag(properties: Mapping[str, str], key: str, *, default: str = "false") -> bool:
    return properties.get(key, default).strip().lower() == "true"


def _integer(properties: Mapping[str, str], key: str, *, default: str, file: str) -> int:
    text = properties.get(key, default)
    try:
        return int(text)
    except ValueError as error:
        raise CorruptTableError(file=file, reason=f"{key} is {text!r}, not a number") from error


def _table_type(properties: Mapping[str, str], *, file: str) -> TableType:
    text = properties.get("hoodie.table.type")
    try:
        return TableType(text)
    except ValueError as error:
        raise CorruptTableError(file=file, reason=f"hoodie.table.type is {text!r}") from error


def key_generator_type(text: str) -> str | None:
    """SIMPLE, COMPLEX, … for Java's name of a type or a class; None for one that is not known here."""
    stem = text.rsplit(".", 1)[-1].removesuffix("KeyGenerator").removesuffix("Avro")
    named = text.upper().removesuffix("_AVRO")
    return named if named in _GENERATORS.values() else _GENERATORS.get(stem)


def _key_generator(properties: Mapping[str, str]) -> str:
    """Named by type, or by class in older tables."""
    named = properties.get("hoodie.table.keygenerator.type")
    if named:
        return named.upper()
    return key_generator_type(properties.get("hoodie.table.keygenerator.class", "")) or "SIMPLE"


def _partition_fields(
    properties: Mapping[str, str], generator: str, *, file: str
) -> tuple[tuple[str, PartitionKind], ...]:
    names = _fields(properties, "hoodie.table.partition.fields")
    if generator == "CUSTOM":
        pairs = [name.partition(":") for name in names]
        strange = [kind for _, _, kind in pairs if kind.upper() not in ("", *(each.value for each in PartitionKind))]
        if strange:
            raise CorruptTableError(file=file, reason=f"hoodie.table.partition.fields names the kind {strange[0]!r}")
        return tuple((name, PartitionKind(kind.upper() or "SIMPLE")) for name, _, kind in pairs)
    kind = PartitionKind.TIMESTAMP if generator == "TIMESTAMP" else PartitionKind.SIMPLE
    return tuple((name, kind) for name in names)


def _merge_mode(properties: Mapping[str, str], *, ordering: tuple[str, ...], file: str) -> MergeMode:
    named = properties.get("hoodie.record.merge.mode")
    if named:
        if named.upper() not in {mode.value for mode in MergeMode}:
            raise CorruptTableError(file=file, reason=f"hoodie.record.merge.mode is {named!r}")
        return MergeMode(named.upper())
    strategy = properties.get("hoodie.record.merge.strategy.id", "")
    payload = properties.get("hoodie.compaction.payload.class", "").rsplit(".", 1)[-1]
    if strategy == _COMMIT_TIME_STRATEGY or payload == "OverwriteWithLatestAvroPayload":
        return MergeMode.COMMIT_TIME
    if payload in ("", "DefaultHoodieRecordPayload", "EventTimeAvroPayload") or strategy == _EVENT_TIME_STRATEGY:
        return MergeMode.EVENT_TIME if ordering else MergeMode.COMMIT_TIME
    return MergeMode.CUSTOM
