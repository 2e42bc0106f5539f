"""Typed settings of the write path, from options."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tablekeeper.config.keys import BUCKET_COUNT, INDEX_TYPE, MAX_PARTITIONS, SORT_MODE
from tablekeeper.config.options import Options
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["IndexKind", "LogBlockFormat", "SortMode", "WriteSettings"]


class IndexKind(enum.Enum):
    """How the file group of a key is found: by looking keys up, or by hashing them to a bucket."""

    SIMPLE = "SIMPLE"
    BUCKET = "BUCKET"


class SortMode(enum.Enum):
    """How a bulk insert orders rows and spreads them over files.

    NONE takes them as they come; unless it was named, rows that are scattered over many partitions are brought together
    all the same. PARTITION_SORT orders what each task has by partition and key. GLOBAL_SORT orders
    all rows so, and files have ranges of keys that hardly overlap. The others bring the rows of a partition together,
    into as few files as it needs.
    """

    NONE = "NONE"
    PARTITION_SORT = "PARTITION_SORT"
    GLOBAL_SORT = "GLOBAL_SORT"
    PARTITION_PATH_REPARTITION = "PARTITION_PATH_REPARTITION"
    PARTITION_PATH_REPARTITION_AND_SORT = "PARTITION_PATH_REPARTITION_AND_SORT"

    @property
    def orders_keys(self) -> bool:
        """Whether files hold their rows in the order of their keys."""
        return self in (SortMode.PARTITION_SORT, SortMode.GLOBAL_SORT)

    @property
    def gathers_partitions(self) -> bool:
        """Whether the rows of a partition are brought together, wherever they come from."""
        return self in (SortMode.PARTITION_PATH_REPARTITION, SortMode.PARTITION_PATH_REPARTITION_AND_SORT)


class LogBlockFormat(enum.Enum):
    """What the data blocks of log files are written as."""

    PARQUET = "parquet"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How rows become files."""

    index: IndexKind
    buckets: int
    bucket_fields: tuple[str, ...]
    max_file_bytes: int
    small_file_bytes: int
    row_group_bytes: int
    compression: str
    row_bytes_estimate: int
    log_block: LogBlockFormat
    combine_before_insert: bool
    combine_before_upsert: bool
    combine_before_delete: bool
    writes_bloom: bool
    bloom_false_positive_rate: float
    bulk_insert_tasks: int
    bulk_insert_sort: SortMode
    gathers_scattered_rows: bool
    max_partitions: int
    task_memory_bytes: int

    @classmethod
    def from_options(cls, options: Options, *, key_fields: tuple[str, ...]) -> WriteSettings:
        return cls(
            index=_index(options),
            buckets=_positive(options, BUCKET_COUNT),
            bucket_fields=_bucket_fields(options, key_fields),
            max_file_bytes=_positive(options, "hoodie.parquet.max.file.size"),
            small_file_bytes=options.integer("hoodie.parquet.small.file.limit"),
            row_group_bytes=_positive(options, "hoodie.parquet.block.size"),
            compression=_compression(options),
            row_bytes_estimate=_positive(options, "hoodie.copyonwrite.record.size.estimate"),
            log_block=_log_block(options),
            combine_before_insert=options.flag("hoodie.combine.before.insert"),
            combine_before_upsert=options.flag("hoodie.combine.before.upsert"),
            combine_before_delete=options.flag("hoodie.combine.before.delete"),
            writes_bloom=options.flag("hoodie.bloom.index.write"),
            bloom_false_positive_rate=_rate(options, "hoodie.index.bloom.fpp"),
            bulk_insert_tasks=options.integer("hoodie.bulkinsert.shuffle.parallelism"),
            bulk_insert_sort=_sort_mode(options),
            gathers_scattered_rows=SORT_MODE not in options.given,
            max_partitions=_positive(options, MAX_PARTITIONS),
            task_memory_bytes=_positive(options, "tablekeeper.write.task.memory.bytes"),
        )


def _positive(options: Options, name: str) -> int:
    value = options.integer(name)
    if value <= 0:
        raise InvalidRequestError(f"option {name}: {value} is not a positive number")
    return value


def _rate(options: Options, name: str) -> float:
    value = options.number(name)
    if not 0 < value < 1:
        raise InvalidRequestError(f"option {name}: {value} is not a rate between 0 and 1")
    return value


def _index(options: Options) -> IndexKind:
    named = options.required_text(INDEX_TYPE).upper()
    if named in ("SIMPLE", "BLOOM"):
        return IndexKind.SIMPLE
    if named == "BUCKET":
        engine = options.required_text("hoodie.index.bucket.engine").upper()
        if engine != "SIMPLE":
            raise UnsupportedFeatureError(f"bucket engine {engine}: use hoodie.index.bucket.engine=SIMPLE")
        return IndexKind.BUCKET
    raise UnsupportedFeatureError(
        f"index {named} is not supported: use hoodie.index.type=SIMPLE (keys unique in a partition) or BUCKET"
    )


def _bucket_fields(options: Options, key_fields: tuple[str, ...]) -> tuple[str, ...]:
    text = options.text("hoodie.bucket.index.hash.field")
    if not text:
        return key_fields
    fields = tuple(field.strip() for field in text.split(","))
    strange = [field for field in fields if field not in key_fields]
    if strange:
        raise InvalidRequestError(
            f"hoodie.bucket.index.hash.field names {', '.join(strange)}, but a bucket is found by the key alone: "
            f"name some of {', '.join(key_fields)}"
        )
    return fields


def _sort_mode(options: Options) -> SortMode:
    name = options.required_text(SORT_MODE).upper()
    try:
        return SortMode(name)
    except ValueError:
        known = ", ".join(mode.value for mode in SortMode)
        raise InvalidRequestError(f"{SORT_MODE}: {name!r} is not one of {known}") from None


_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4_raw": "lz4", "uncompressed": "none"}


def _compression(options: Options) -> str:
    name = options.required_text("hoodie.parquet.compression.codec").lower()
    if name not in _CODECS:
        raise InvalidRequestError(f"hoodie.parquet.compression.codec: {name!r} is not one of {', '.join(_CODECS)}")
    return _CODECS[name]


def _log_block(options: Options) -> LogBlockFormat:
    name = options.required_text("hoodie.logfile.data.block.format").lower()
    try:
        return LogBlockFormat(name)
    except ValueError:
        raise InvalidRequestError(f"hoodie.logfile.data.block.format: {name!r} is not parquet or avro") from None
