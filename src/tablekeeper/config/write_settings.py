"""Typed settings of the write path, from options."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from tablekeeper.config.keys import BUCKET_COUNT, INDEX_TYPE, MAX_PARTITIONS, SORT_MODE
from tablekeeper.config.metadata_settings import PARTITION_SHARDS
from tablekeeper.config.registry import Setting, Settings, field_of, setting
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["NEW_FILE_BYTES", "IndexKind", "LogBlockFormat", "SortMode", "WriteSettings"]

NEW_FILE_BYTES = Setting("hoodie.parquet.max.file.size", 125_829_120, "Target size of a base file, in bytes.", least=1)

_BUCKET_FIELDS = Setting(
    "hoodie.bucket.index.hash.field", None, "Key fields that are hashed to the bucket; all key fields by default."
)
_BUCKET_ENGINE = Setting("hoodie.index.bucket.engine", "SIMPLE", "Bucket index engine; SIMPLE is the one supported.")
_FALSE_POSITIVES = "hoodie.index.bloom.fpp"
_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4_raw": "lz4", "uncompressed": "none"}


class IndexKind(enum.Enum):
    """How the file group of a key is found: in the files, by hashing it to a bucket, or by the table's record index.

    The global ones look into all partitions of the table: with them a key is in one place of it.
    """

    SIMPLE = "SIMPLE"
    GLOBAL_SIMPLE = "GLOBAL_SIMPLE"
    BLOOM = "BLOOM"
    GLOBAL_BLOOM = "GLOBAL_BLOOM"
    BUCKET = "BUCKET"
    RECORD_INDEX = "RECORD_INDEX"
    RECORD_LEVEL_INDEX = "RECORD_LEVEL_INDEX"

    @property
    def is_global(self) -> bool:
        """Whether a key is looked for in the whole table."""
        return self in (IndexKind.GLOBAL_SIMPLE, IndexKind.GLOBAL_BLOOM, IndexKind.RECORD_INDEX)

    @property
    def filters_files(self) -> bool:
        """Whether bloom filters tell which base files need not be read."""
        return self in (IndexKind.BLOOM, IndexKind.GLOBAL_BLOOM)


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


def _index(text: str) -> IndexKind:
    name = text.upper()
    if name == "GLOBAL_RECORD_LEVEL_INDEX":
        return IndexKind.RECORD_INDEX
    if name in IndexKind.__members__:
        return IndexKind[name]
    known = ", ".join(IndexKind.__members__)
    raise UnsupportedFeatureError(f"index {name} is not supported: use one of {known} as {INDEX_TYPE}")


def _codec(text: str) -> str:
    codec = _CODECS.get(text.lower())
    if codec is None:
        raise ValueError(f"{text!r} is not one of {', '.join(_CODECS)}")
    return codec


@dataclass(frozen=True, slots=True)
class WriteSettings(Settings):
    """How rows become files."""

    index: IndexKind = setting(
        INDEX_TYPE,
        IndexKind.SIMPLE,
        "How keys find their file group: SIMPLE and BLOOM in the files of their partition, GLOBAL_SIMPLE and "
        "GLOBAL_BLOOM in those of all partitions, BUCKET by their hash, RECORD_INDEX (or GLOBAL_RECORD_LEVEL_INDEX) by "
        "the record index of the whole table, RECORD_LEVEL_INDEX by the one by partitions. The record index that the "
        "table has is the default.",
        parse=_index,
    )
    simple_moves_rows: bool = setting(
        "hoodie.simple.index.update.partition.path",
        True,
        "With GLOBAL_SIMPLE, a row that names another partition than the one that has its key moves there; false "
        "updates it where it is.",
    )
    bloom_moves_rows: bool = setting(
        "hoodie.bloom.index.update.partition.path",
        True,
        "With GLOBAL_BLOOM, a row that names another partition than the one that has its key moves there; false "
        "updates it where it is.",
    )
    buckets: int = setting(BUCKET_COUNT, 4, "Buckets in each partition, with the bucket index.", least=1)
    bucket_fields: tuple[str, ...] = ()
    max_file_bytes: int = field_of(NEW_FILE_BYTES)
    small_file_bytes: int = setting(
        "hoodie.parquet.small.file.limit",
        104_857_600,
        "Base files below this many bytes take new rows first; 0 turns it off.",
    )
    row_group_bytes: int = setting(
        "hoodie.parquet.block.size",
        67_108_864,
        "Size of a Parquet row group, in bytes of uncompressed data.",
        least=1,
    )
    compression: str = setting(
        "hoodie.parquet.compression.codec",
        "zstd",
        "Compression of base files: zstd, snappy, gzip, lz4_raw or uncompressed.",
        parse=_codec,
    )
    row_bytes_estimate: int = setting(
        "hoodie.copyonwrite.record.size.estimate", 1024, "Bytes a row takes, until commits tell better.", least=1
    )
    log_block: LogBlockFormat = setting(
        "hoodie.logfile.data.block.format",
        LogBlockFormat.PARQUET,
        "Data blocks of log files: parquet (fast) or avro.",
    )
    combine_before_insert: bool = setting(
        "hoodie.combine.before.insert", False, "Drop duplicate keys from the input of an insert."
    )
    combine_before_upsert: bool = setting(
        "hoodie.combine.before.upsert", True, "Drop duplicate keys from the input of an upsert."
    )
    combine_before_delete: bool = setting(
        "hoodie.combine.before.delete", True, "Drop duplicate keys from the input of a delete."
    )
    writes_bloom: bool = setting(
        "hoodie.bloom.index.write", True, "Write bloom filters, which the BLOOM indexes need, ours and Java's."
    )
    bloom_false_positive_rate: float = setting(
        _FALSE_POSITIVES, 0.000001, "False positive rate of the bloom filter in base files."
    )
    bulk_insert_tasks: int = setting(
        "hoodie.bulkinsert.shuffle.parallelism",
        0,
        "Number of tasks that write a bulk insert; 0 follows the input.",
    )
    bulk_insert_sort: SortMode = setting(
        SORT_MODE,
        SortMode.NONE,
        "Order of a bulk insert: NONE as rows come (if not named, gathered where they make too many small files), "
        "PARTITION_SORT by partition and key in each task, GLOBAL_SORT over "
        "all rows, PARTITION_PATH_REPARTITION (or _AND_SORT) into as few files a partition as it needs.",
    )
    new_partition_shards: int = field_of(PARTITION_SHARDS)
    gathers_scattered_rows: bool = True
    names_index: bool = False
    max_partitions: int = setting(MAX_PARTITIONS, 20_000, "Most partitions that one write may touch.", least=1)
    task_memory_bytes: int = setting(
        "tablekeeper.write.task.memory.bytes",
        268_435_456,
        "Rows buffered in a staging or bulk-insert task, in bytes. Logs of more than half as many bytes are compacted "
        "with the help of the local disk.",
        least=1,
    )

    besides: ClassVar[tuple[Setting, ...]] = (_BUCKET_FIELDS, _BUCKET_ENGINE)

    @property
    def moves_rows(self) -> bool:
        """Whether a row goes to the partition that it names if its key is found in another one, in the files.

        A table that has no record index (any more) is searched as by GLOBAL_SIMPLE, as Java does it.
        """
        if self.index is IndexKind.GLOBAL_BLOOM:
            return self.bloom_moves_rows
        return self.index.is_global and self.simple_moves_rows

    def _check(self) -> None:
        if not 0 < self.bloom_false_positive_rate < 1:
            raise InvalidRequestError(
                f"option {_FALSE_POSITIVES}: {self.bloom_false_positive_rate} is not a rate between 0 and 1"
            )

    @classmethod
    def of_table(cls, options: Mapping[str, str], *, key_fields: tuple[str, ...]) -> Self:
        """From options by name, for a table with these key fields."""
        values = cls.read(options)
        engine = _BUCKET_ENGINE.read(options).upper()
        if values["index"] is IndexKind.BUCKET and engine != "SIMPLE":
            raise UnsupportedFeatureError(f"bucket engine {engine}: use {_BUCKET_ENGINE.name}=SIMPLE")
        return cls(
            **values,
            bucket_fields=_bucket_fields(_BUCKET_FIELDS.read(options), key_fields),
            gathers_scattered_rows=SORT_MODE not in options,
            names_index=INDEX_TYPE in options,
        )


def _bucket_fields(text: str | None, key_fields: tuple[str, ...]) -> tuple[str, ...]:
    if not text:
        return key_fields
    fields = tuple(field.strip() for field in text.split(","))
    strange = [field for field in fields if field not in key_fields]
    if strange:
        raise InvalidRequestError(
            f"{_BUCKET_FIELDS.name} names {', '.join(strange)}, but a bucket is found by the key alone: "
            f"name some of {', '.join(key_fields)}"
        )
    return fields
