"""Partition paths: the folder, relative to the table, in which a row lives.

The path of a row is the text of its partition columns joined by `/`, plain or as
`column=value`; a missing value becomes `__HIVE_DEFAULT_PARTITION__`. Only distinct values are
formatted, so the cost follows the number of partitions. A path that would leave the table's
folder or enter its metadata is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.config.key_generator import timestamp_partition_settings
from tablekeeper.config.table_config import PartitionKind, TableConfig
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.record.columns import column_values, combined, format_values, require_plain
from tablekeeper.record.date_patterns import ParsedTimes, compile_pattern, default_text, parse_times, zone_name

__all__ = [
    "NULL_PARTITION",
    "PartitionField",
    "PartitionSpec",
    "TimestampSpec",
    "partition_paths",
    "partition_spec",
    "partition_values",
    "prunable_values",
]

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

TimestampType = Literal["UNIX_TIMESTAMP", "DATE_STRING", "MIXED", "EPOCHMILLISECONDS", "EPOCHMICROSECONDS", "SCALAR"]

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_FIXED_UNITS = {"UNIX_TIMESTAMP": "SECONDS", "EPOCHMILLISECONDS": "MILLISECONDS", "EPOCHMICROSECONDS": "MICROSECONDS"}
_UNIT_NS = {
    "NANOSECONDS": 1,
    "MICROSECONDS": 1000,
    "MILLISECONDS": 10**6,
    "SECONDS": 10**9,
    "MINUTES": 60 * 10**9,
    "HOURS": 3600 * 10**9,
    "DAYS": 86400 * 10**9,
}
_MS_NS = 10**6


@dataclass(frozen=True, slots=True)
class TimestampSpec:
    """How the timestamp-based key generator turns a value into path text.

    `scalar_unit` counts only for the type SCALAR. Zones are Java names; None means the offset in
    the text, or UTC where there is none (Java takes the zone of its machine).
    """

    timestamp_type: TimestampType
    output_format: str
    input_formats: tuple[str, ...] = ()
    scalar_unit: str = "SECONDS"
    input_timezone: str | None = None
    output_timezone: str | None = None

    def __post_init__(self) -> None:
        compile_pattern(self.output_format).require_printable()
        for pattern in self.input_formats:
            compile_pattern(pattern).require_readable()
        for zone in (self.input_timezone, self.output_timezone):
            if zone is not None:
                zone_name(zone)
        if self.reads_text and not self.input_formats:
            raise InvalidRequestError(f"timestamp type {self.timestamp_type} needs an input date format.")
        if not self.reads_text and self.unit not in _UNIT_NS:
            raise InvalidRequestError(f"unknown time unit {self.scalar_unit}: use one of {', '.join(_UNIT_NS)}.")

    @property
    def reads_text(self) -> bool:
        """Whether the column holds dates as text rather than numbers."""
        return self.timestamp_type in ("DATE_STRING", "MIXED")

    @property
    def unit(self) -> str:
        """The unit of numbers in the column."""
        return _FIXED_UNITS.get(self.timestamp_type, self.scalar_unit.upper())


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One partition column and how its value becomes text."""

    name: str
    kind: Literal["simple", "timestamp"] = "simple"
    timestamp: TimestampSpec | None = None

    def __post_init__(self) -> None:
        if (self.kind == "timestamp") != (self.timestamp is not None):
            raise InvalidRequestError(
                f"partition column {self.name}: a timestamp setting goes with the kind 'timestamp'."
            )


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The partition columns of a table and the style of its paths. No fields: not partitioned."""

    fields: tuple[PartitionField, ...]
    hive_style: bool = False
    url_encode: bool = False
    slash_separated_dates: bool = False


def partition_spec(config: TableConfig) -> PartitionSpec:
    """How the partition path of a row is made."""
    fields = tuple(_partition_field(config, name, kind) for name, kind in config.partition_fields)
    return PartitionSpec(
        fields,
        hive_style=config.hive_style,
        url_encode=config.url_encode,
        slash_separated_dates=config.slash_separated_dates,
    )


def partition_paths(batch: pa.RecordBatch | pa.Table, spec: PartitionSpec) -> pa.DictionaryArray:
    """The partition path of each row: int32 indices into the distinct paths, which are all used."""
    rows = batch.num_rows
    if not spec.fields:
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([""], pa.string()))
    columns = [_segment_codes(column_values(batch, field.name), field, spec) for field in spec.fields]
    codes, combinations = _combine(columns)
    texts = ["/".join(parts) for parts in combinations]
    if spec.slash_separated_dates and len(spec.fields) == 1:
        texts = [text.replace("-", "/") for text in texts]
    for text in texts:
        _refuse_escaping_path(text)
    # Different values may share a path (null and the empty text), so the paths are made distinct once more.
    distinct = pa.array(texts, pa.string()).dictionary_encode()
    indices = pa.array(np.asarray(distinct.indices)[codes].astype(np.int32)) if rows else pa.array([], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, distinct.dictionary)


def partition_values(path: str, spec: PartitionSpec) -> tuple[str | None, ...]:
    """The text of each partition column in `path`, in order; None stands for a missing value.

    Returns () when the path does not tell (a value with `/` in it, or another style than `spec`'s).
    """
    segments = _split(path, spec)
    if segments is None:
        return ()
    values = (segment.replace("/", "-") if spec.slash_separated_dates else segment for segment in segments)
    return tuple(None if v == NULL_PARTITION else _unescape(v) if spec.url_encode else v for v in values)


def prunable_values(path: str, spec: PartitionSpec) -> dict[str, str | None]:
    """`partition_values` by column, without the columns whose path text is not the column's value.

    A timestamp field prints a date made from the column (`20240304` from epoch seconds), which
    must not be compared with the column itself.
    """
    values = partition_values(path, spec)
    pairs = zip(spec.fields, values, strict=False)
    return {field.name: value for field, value in pairs if field.kind == "simple"}


def _partition_field(config: TableConfig, name: str, kind: PartitionKind) -> PartitionField:
    if kind is PartitionKind.SIMPLE:
        return PartitionField(name)
    settings = timestamp_partition_settings(config.properties)
    spec = TimestampSpec(
        timestamp_type=_timestamp_type(settings.timestamp_type),
        output_format=settings.output_format,
        input_formats=settings.input_formats,
        scalar_unit=settings.scalar_unit,
        input_timezone=settings.input_timezone,
        output_timezone=settings.output_timezone,
    )
    return PartitionField(name, "timestamp", spec)


def _timestamp_type(name: str) -> TimestampType:
    known: tuple[TimestampType, ...] = get_args(TimestampType)
    for each in known:
        if each == name.upper():
            return each
    raise UnsupportedFeatureError(f"timestamp type {name!r} of the partition field is not one of {', '.join(known)}")


def _segment_codes(
    values: pa.Array | pa.ChunkedArray, field: PartitionField, spec: PartitionSpec
) -> tuple[np.ndarray, list[str]]:
    """For each row the number of its distinct value, and the path segment of each of these."""
    array = combined(values)
    if field.timestamp is not None:
        local_ms = _local_times(array, field.timestamp, field.name)
        pattern = compile_pattern(field.timestamp.output_format)
        step = pattern.granularity_ms
        encoded = pa.array(np.asarray(local_ms) // step).dictionary_encode()
        texts: list[str | None] = [pattern.print_local(code * step) for code in encoded.dictionary.to_pylist()]
    else:
        require_plain(array.type)
        encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode(null_encoding="encode")
        texts = format_values(encoded.dictionary).to_pylist()
    codes = np.asarray(pc.fill_null(encoded.indices.cast(pa.int64()), len(texts)))
    return codes, [_segment(text, field.name, spec) for text in [*texts, None]]


def _segment(text: str | None, name: str, spec: PartitionSpec) -> str:
    value = NULL_PARTITION if not text else _escape(text) if spec.url_encode else text
    return f"{name}={value}" if spec.hive_style else value


def _combine(columns: list[tuple[np.ndarray, list[str]]]) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Number the combinations that occur, in order of first appearance."""
    codes = np.zeros(len(columns[0][0]), np.int64)
    combinations: list[tuple[str, ...]] = [()]
    for column_codes, segments in columns:
        encoded = pa.array(codes * len(segments) + column_codes).dictionary_encode()
        used = encoded.dictionary.to_pylist()
        combinations = [(*combinations[code // len(segments)], segments[code % len(segments)]) for code in used]
        codes = np.asarray(encoded.indices).astype(np.int64)
    return codes, combinations


def _local_times(array: pa.Array, spec: TimestampSpec, name: str) -> pa.Array:
    """Milliseconds on the clock of the output zone; a null takes the value that Java gives it."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if spec.reads_text:
        times = _parsed_times(array, spec, name)
    else:
        utc = _numbers_to_ms(array, spec, name)
        times = ParsedTimes(utc, utc)
    if spec.output_timezone is None:
        return times.local_ms
    zoned = times.utc_ms.cast(pa.timestamp("ms", zone_name(spec.output_timezone)))
    return pc.local_timestamp(zoned).cast(pa.int64())


def _parsed_times(array: pa.Array, spec: TimestampSpec, name: str) -> ParsedTimes:
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or array.type == pa.string_view()):
        raise InvalidRequestError(f"partition column {name} is {array.type}, but {spec.timestamp_type} reads text.")
    patterns = tuple(compile_pattern(pattern) for pattern in spec.input_formats)
    encoded = array.cast(pa.string()).dictionary_encode()
    zone = spec.input_timezone or spec.output_timezone or "UTC"
    default = default_text(patterns[0], zone=zone)
    texts = pa.concat_arrays([encoded.dictionary, pa.array([default], pa.string())])
    times = parse_times(texts, patterns, zone=spec.input_timezone)
    unread = pc.is_null(times.utc_ms)
    if pc.any(unread).as_py():
        example = texts.filter(unread)[0].as_py()
        raise InvalidRequestError(
            f"partition column {name}: {example!r} fits none of the input formats {', '.join(spec.input_formats)}."
        )
    rows = pc.fill_null(encoded.indices.cast(pa.int64()), len(texts) - 1)
    return ParsedTimes(times.utc_ms.take(rows), times.local_ms.take(rows))


def _numbers_to_ms(array: pa.Array, spec: TimestampSpec, name: str) -> pa.Array:
    """Numbers in the spec's unit as milliseconds, rounded towards zero as Java's unit conversion does."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz), safe=False) if kind.unit in ("s", "ns") else array
        array = array.cast(pa.int64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        array = pc.trunc(array).cast(pa.int64(), safe=False)
    elif pa.types.is_integer(kind):
        array = array.cast(pa.int64())
    else:
        raise InvalidRequestError(f"partition column {name} is {kind}, but {spec.timestamp_type} reads numbers.")
    numbers = pc.fill_null(array, 1)
    unit_ns = _UNIT_NS[spec.unit]
    try:
        if unit_ns >= _MS_NS:
            return pc.multiply_checked(numbers, unit_ns // _MS_NS)
        return pc.divide(numbers, _MS_NS // unit_ns)
    except pa.ArrowInvalid:
        raise InvalidRequestError(
            f"partition column {name}: a number is too large to be {spec.unit.lower()}."
        ) from None


def _split(path: str, spec: PartitionSpec) -> list[str] | None:
    """The path cut at the borders between fields; None when they cannot be told."""
    if not spec.fields:
        return [] if path == "" else None
    remaining = path.split("/")
    parts: list[str] = []
    for field in spec.fields:
        depth = 1 + field.timestamp.output_format.count("/") if field.timestamp and not spec.url_encode else 1
        depth = len(remaining) if len(spec.fields) == 1 else depth
        if remaining[:1] and remaining[0].removeprefix(f"{field.name}=") == NULL_PARTITION:
            depth = 1
        if len(remaining) < depth:
            return None
        part, remaining = "/".join(remaining[:depth]), remaining[depth:]
        if part.startswith(f"{field.name}=") != spec.hive_style:
            return None
        parts.append(part.removeprefix(f"{field.name}=") if spec.hive_style else part)
    return None if remaining else parts


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def _refuse_escaping_path(path: str) -> None:
    segments = path.split("/")
    if "\0" in path or segments[0] == ".hoodie" or any(segment in ("", ".", "..") for segment in segments):
        raise InvalidRequestError(
            f"the partition value {path!r} does not make a folder inside the table: "
            "change the value, or create the table with URL-encoded partition paths."
        )
