"""Every option a caller may pass, in one registry; an unknown one is refused with the nearest name.

Settings of Java jobs that are no options (`config.java_keys`) are told apart: what they say about the table is left to
be compared with it, and what has no meaning here is left to be named.

Options carry Hudi's names where Hudi has one, so that settings of Java jobs can be reused as they
are, and names that begin with `tablekeeper.` where it has none. Values are strings, as in Hudi.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tablekeeper.config.archive_settings import ARCHIVE_OPTIONS
from tablekeeper.config.clean_settings import CLEAN_OPTIONS
from tablekeeper.config.concurrency_settings import CONCURRENCY_OPTIONS
from tablekeeper.config.hosting_settings import HOSTING_OPTIONS
from tablekeeper.config.java_keys import CLAIMS, IDLE, REFUSED, RENAMED, is_idle
from tablekeeper.config.keys import (
    BLOCKS_SPECULATION,
    BUCKET_COUNT,
    INDEX_DROP,
    INDEX_TYPE,
    MAX_PARTITIONS,
    METADATA_ENABLE,
    SORT_MODE,
    WIDEN_TO_STRING,
)
from tablekeeper.config.lifecycle_settings import LIFECYCLE_OPTIONS
from tablekeeper.config.lock_settings import LOCK_OPTIONS
from tablekeeper.config.metadata_settings import METADATA_OPTIONS
from tablekeeper.config.service_options import SERVICE_OPTIONS
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["OPTIONS", "OptionKey", "Options", "is_known_option"]


@dataclass(frozen=True, slots=True)
class OptionKey:
    """A known option: its name, default, the type its text is read as, and what it does."""

    name: str
    default: str | None
    kind: type
    doc: str


def _register(*groups: Iterable[tuple[str, str | None, type, str]]) -> dict[str, OptionKey]:
    return {entry[0]: OptionKey(*entry) for group in groups for entry in group}


_WRITE_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (
        INDEX_TYPE,
        "SIMPLE",
        str,
        "How keys find their file group: SIMPLE (or BLOOM, looked up alike) or BUCKET.",
    ),
    (BUCKET_COUNT, "4", int, "Buckets in each partition, with the bucket index."),
    (
        "hoodie.bucket.index.hash.field",
        None,
        str,
        "Key fields that are hashed to the bucket; all key fields by default.",
    ),
    ("hoodie.index.bucket.engine", "SIMPLE", str, "Bucket index engine; SIMPLE is the one supported."),
    ("hoodie.parquet.max.file.size", "125829120", int, "Target size of a base file, in bytes."),
    (
        "hoodie.parquet.small.file.limit",
        "104857600",
        int,
        "Base files below this many bytes take new rows first; 0 turns it off.",
    ),
    ("hoodie.parquet.block.size", "67108864", int, "Size of a Parquet row group, in bytes of uncompressed data."),
    (
        "hoodie.parquet.compression.codec",
        "zstd",
        str,
        "Compression of base files: zstd, snappy, gzip, lz4_raw or uncompressed.",
    ),
    ("hoodie.copyonwrite.record.size.estimate", "1024", int, "Bytes a row takes, until commits tell better."),
    ("hoodie.logfile.data.block.format", "parquet", str, "Data blocks of log files: parquet (fast) or avro."),
    ("hoodie.combine.before.insert", "false", bool, "Drop duplicate keys from the input of an insert."),
    ("hoodie.combine.before.upsert", "true", bool, "Drop duplicate keys from the input of an upsert."),
    ("hoodie.combine.before.delete", "true", bool, "Drop duplicate keys from the input of a delete."),
    ("hoodie.index.bloom.fpp", "0.000001", float, "False positive rate of the bloom filter in base files."),
    ("hoodie.bloom.index.write", "true", bool, "Write the bloom filter that Java's BLOOM index needs."),
    (METADATA_ENABLE, "true", bool, "Keep the metadata table in step; false switches it off."),
    (
        INDEX_DROP,
        "false",
        bool,
        "Drop the record, bloom, secondary or expression index of a table that an action would leave wrong.",
    ),
    (
        SORT_MODE,
        "NONE",
        str,
        "Order of a bulk insert: NONE as rows come (if not named, gathered where they make too many small files), "
        "PARTITION_SORT by partition and key in each task, GLOBAL_SORT over "
        "all rows, PARTITION_PATH_REPARTITION (or _AND_SORT) into as few files a partition as it needs.",
    ),
    (
        "hoodie.bulkinsert.shuffle.parallelism",
        "0",
        int,
        "Number of tasks that write a bulk insert; 0 follows the input.",
    ),
    (
        BLOCKS_SPECULATION,
        "true",
        bool,
        "Refuse to change the table while `spark.speculation` is on, as Java does; false changes it all the same.",
    ),
    (
        WIDEN_TO_STRING,
        "false",
        bool,
        "Number columns become strings for good where rows bring strings; key, ordering, partition columns never do.",
    ),
    (MAX_PARTITIONS, "20000", int, "Most partitions that one write may touch."),
    (
        "tablekeeper.write.task.memory.bytes",
        "268435456",
        int,
        "Rows buffered in a staging or bulk-insert task, in bytes.",
    ),
)

_TABLE_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    ("hoodie.database.name", None, str, "Database that the table belongs to."),
    (
        "hoodie.datasource.write.hive_style_partitioning",
        "false",
        bool,
        "Partition directories are named `field=value`.",
    ),
    (
        "hoodie.datasource.write.partitionpath.urlencode",
        "false",
        bool,
        "Special characters in partition values are escaped.",
    ),
    ("hoodie.record.merge.mode", None, str, "EVENT_TIME_ORDERING (with ordering fields) or COMMIT_TIME_ORDERING."),
    (
        "hoodie.table.keygenerator.type",
        None,
        str,
        "SIMPLE, COMPLEX, TIMESTAMP, CUSTOM or NON_PARTITION; inferred by default.",
    ),
    ("hoodie.table.timeline.timezone", "UTC", str, "Zone of instant times: UTC or LOCAL."),
    ("hoodie.keygen.timebased.timestamp.type", None, str, "How a timestamp-based partition field is read."),
    ("hoodie.keygen.timebased.input.dateformat", None, str, "Date formats of the partition field, for DATE_STRING."),
    ("hoodie.keygen.timebased.input.dateformat.list.delimiter.regex", ",", str, "Separator of several input formats."),
    ("hoodie.keygen.timebased.output.dateformat", None, str, "Date format of the partition path."),
    ("hoodie.keygen.timebased.input.timezone", None, str, "Zone of the input dates."),
    ("hoodie.keygen.timebased.output.timezone", None, str, "Zone of the partition path."),
    ("hoodie.keygen.timebased.timezone", "UTC", str, "Zone of both, unless given apart."),
    ("hoodie.keygen.timebased.timestamp.scalar.time.unit", "SECONDS", str, "Unit of the field, for SCALAR."),
)

OPTIONS: Mapping[str, OptionKey] = _register(
    _WRITE_OPTIONS,
    _TABLE_OPTIONS,
    LOCK_OPTIONS,
    CONCURRENCY_OPTIONS,
    ARCHIVE_OPTIONS,
    CLEAN_OPTIONS,
    SERVICE_OPTIONS,
    LIFECYCLE_OPTIONS,
    METADATA_OPTIONS,
    HOSTING_OPTIONS,
)
"""All known options by name."""


# A long of Java's; a float beyond it, an infinity or not-a-number is nobody's setting.
_LARGEST = 2**63 - 1


class Options:
    """The options of one table handle: what the caller gave, checked, over the defaults.

    `claims` are the settings among them that say what the table is, `idle` names those of Java's that have no meaning
    here. Neither outlives `merged_over`: who opens a table looks at them.
    """

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self.given: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        self.idle: list[str] = []
        if given is not None and not isinstance(given, Mapping):
            raise InvalidRequestError(f"options={given!r}: give values by name, {{{INDEX_TYPE!r}: 'BUCKET'}}.")
        for name, value in (given or {}).items():
            if not is_known_option(name):
                raise InvalidRequestError(_unknown(str(name)))
            if not isinstance(value, str | bool | int | float):
                raise InvalidRequestError(f"option {name}: {value!r} is no text, number or boolean.")
            self._take(name, str(value).lower() if isinstance(value, bool) else str(value))

    def _take(self, name: str, text: str) -> None:
        option = RENAMED.get(name, name)
        if option in OPTIONS:
            if self.given.get(option, text) != text:
                raise InvalidRequestError(f"options {name} and {option} are one and differ. Leave one of them out.")
            self._parse(option, text)
            self.given[option] = text
        if option in CLAIMS:
            self.claims[name] = text
        elif option in REFUSED:
            refusal = REFUSED[option]
            if text.strip().lower() not in ("", *(each.lower() for each in refusal.harmless)):
                raise UnsupportedFeatureError(f"option {name}={text!r} is not supported. {refusal.instead}")
        elif option not in OPTIONS:
            self.idle.append(name)

    def merged_over(self, older: Options) -> Options:
        """These options, and those of `older` where these say nothing."""
        return Options({**older.given, **self.given})

    def text(self, name: str) -> str | None:
        return self.given.get(name, OPTIONS[name].default)

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise InvalidRequestError(f"option {name} is needed here: pass it in `options`")
        return value

    def integer(self, name: str) -> int:
        return int(self.required_text(name))

    def number(self, name: str) -> float:
        return float(self.required_text(name))

    def flag(self, name: str) -> bool:
        return self.required_text(name).lower() == "true"

    @staticmethod
    def _parse(name: str, value: str) -> None:
        kind = OPTIONS[name].kind
        try:
            if kind is bool:
                if value.lower() not in ("true", "false"):
                    raise ValueError("not true or false")
            elif kind is not str and not abs(kind(value)) <= _LARGEST:
                raise ValueError("out of range")
            value.encode()
        except ValueError as error:
            raise InvalidRequestError(f"option {name}: {value!r} is not a valid {kind.__name__}") from error


def is_known_option(name: object) -> bool:
    """Whether it is an option, or a setting of Java's that is understood."""
    return isinstance(name, str) and (
        name in OPTIONS or name in RENAMED or name in CLAIMS or name in REFUSED or is_idle(name)
    )


def _unknown(name: str) -> str:
    names = [*OPTIONS, *CLAIMS, *RENAMED, *REFUSED, *(each for names in IDLE.values() for each in names)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else " See docs/configuration.md for the options there are."
    return f"unknown option {name!r}.{hint}"
