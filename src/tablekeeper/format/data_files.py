"""The files of a partition: names of base and log files, footers of base files, and the file that marks a partition.

The key range and the bloom filter in the footer serve the BLOOM indexes, Java's and ours; a table whose base
files lack them is readable, but Java's BLOOM index fails on it. Parquet has no checksum for its footer, and a bit that
is lost in a filter would hide a key: filters that are written here have one beside them, which Java leaves alone.

A log file is named `.<fileId>_<instant>.log.<version>_<writeToken>[.cdc]`. The instant is the delta commit's requested
time from table version 8 on, and the base file's before that. A name that does not follow the pattern is not a log
file: `decode_log_name` answers None, so that listings can skip strangers.

Without the partition's metadata file Java's listing does not see the directory.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError, InvalidRequestError
from tablekeeper.format.properties import decode_properties, encode_properties

__all__ = [
    "PARTITION_METADATA_NAME",
    "BaseFooter",
    "BaseName",
    "LogName",
    "PartitionMetadata",
    "decode_base_name",
    "decode_footer",
    "decode_log_name",
    "decode_partition_metadata",
    "encode_base_name",
    "encode_footer",
    "encode_log_name",
    "encode_partition_metadata",
]


_NAME = re.compile(r"([^_./]+)_([^_./]+)_(\d+)\.parquet", re.ASCII)

_SCHEMA = "parquet.avro.schema"
_MODEL = "writer.model.name"
_MIN_KEY = "hoodie_min_record_key"
_MAX_KEY = "hoodie_max_record_key"
_BLOOM = "org.apache.hudi.bloomfilter"
_OLD_BLOOM = "com.uber.hoodie.bloomfilter"
_BLOOM_TYPE = "hoodie_bloom_filter_type_code"
_DEFAULT_BLOOM_TYPE = "SIMPLE"
_BLOOM_CHECKSUM = "tablekeeper.bloomfilter.crc32"


@dataclass(frozen=True, slots=True)
class BaseName:
    """The parts of a base file's name; `instant` is the requested time of the action that wrote it."""

    file_id: str
    write_token: str
    instant: str


@dataclass(frozen=True, slots=True)
class BaseFooter:
    """What the footer says beyond the Parquet schema. None where a writer left it out."""

    avro_schema_json: str | None = None
    min_key: str | None = None
    max_key: str | None = None
    bloom: bytes | None = None
    bloom_type: str | None = None


def encode_base_name(*, file_id: str, write_token: str, instant: str) -> str:
    """`<file id>_<write token>_<instant>.parquet`; a ValueError if the parts could not be told apart again."""
    name = f"{file_id}_{write_token}_{instant}.parquet"
    if decode_base_name(name) is None:
        raise ValueError(f"{name!r} would not be read as the name of a base file")
    return name


def decode_base_name(name: str) -> BaseName | None:
    """The parts of a Parquet base file's name, None for any other file."""
    found = _NAME.fullmatch(name)
    return BaseName(*found.groups()) if found else None


def encode_footer(
    *, avro_schema_json: str, min_key: str | None, max_key: str | None, bloom: bytes | None, bloom_type: str
) -> dict[str, str]:
    """Key/value metadata of the Parquet file."""
    footer = {_SCHEMA: avro_schema_json, _MODEL: "avro"}
    if min_key is not None:
        footer[_MIN_KEY] = min_key
    if max_key is not None:
        footer[_MAX_KEY] = max_key
    if bloom is not None:
        footer[_BLOOM] = base64.b64encode(bloom).decode()
        footer[_BLOOM_TYPE] = bloom_type
        footer[_BLOOM_CHECKSUM] = _checksum(bloom)
    return footer


def decode_footer(metadata: Mapping[bytes, bytes], *, file: str) -> BaseFooter:
    """What the key/value metadata of a Parquet file says. `CorruptTableError` if a filter does not fit its checksum."""
    encoded = _text(metadata, _BLOOM, file=file) or _text(metadata, _OLD_BLOOM, file=file)
    bloom = _base64(encoded, file=file) if encoded else None
    bloom_type = _text(metadata, _BLOOM_TYPE, file=file)
    checksum = _text(metadata, _BLOOM_CHECKSUM, file=file)
    if bloom is not None and checksum is not None and checksum != _checksum(bloom):
        raise CorruptTableError(file=file, reason="the bloom filter in the footer does not fit its checksum")
    return BaseFooter(
        avro_schema_json=_text(metadata, _SCHEMA, file=file),
        min_key=_text(metadata, _MIN_KEY, file=file),
        max_key=_text(metadata, _MAX_KEY, file=file),
        bloom=bloom,
        # Files from before there were several kinds do not name theirs.
        bloom_type=(bloom_type or _DEFAULT_BLOOM_TYPE) if bloom else None,
    )


def _text(metadata: Mapping[bytes, bytes], key: str, *, file: str) -> str | None:
    value = metadata.get(key.encode())
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CorruptTableError(file=file, reason=f"{key} in the footer is not text") from error


def _base64(text: str, *, file: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CorruptTableError(file=file, reason="the bloom filter in the footer is not Base64") from error


def _checksum(bloom: bytes) -> str:
    return f"{zlib.crc32(bloom):08x}"


_PATTERN = re.compile(
    r"\.(?P<file_id>[^._/]+)_(?P<instant>[0-9]+)\.log\.(?P<version>[0-9]{1,18})"
    r"(?:_(?P<token>[0-9]+-[0-9]+-[0-9]+)(?P<cdc>\.cdc)?)?"
)


@dataclass(frozen=True, slots=True)
class LogName:
    """The parts of a log file name. `write_token` is empty in names of very old writers."""

    file_id: str
    instant: str
    version: int
    write_token: str
    is_cdc: bool = False


def encode_log_name(*, file_id: str, instant: str, version: int, write_token: str) -> str:
    """The file name for these parts; refuses parts that would not decode to themselves."""
    name = f".{file_id}_{instant}.log.{version}_{write_token}"
    expected = LogName(file_id=file_id, instant=instant, version=version, write_token=write_token)
    if decode_log_name(name) != expected:
        raise InvalidRequestError(
            f"{name!r} is no log file name. The file id takes letters, digits and `-`, the instant digits, "
            "the version a number, the write token three numbers joined by `-`."
        )
    return name


def decode_log_name(name: str) -> LogName | None:
    """The parts of a log file name (no directories), or None if `name` is not one."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    return LogName(
        file_id=match["file_id"],
        instant=match["instant"],
        version=int(match["version"]),
        write_token=match["token"] or "",
        is_cdc=match["cdc"] is not None,
    )


PARTITION_METADATA_NAME = ".hoodie_partition_metadata"

_COMMIT_TIME = "commitTime"
_DEPTH = "partitionDepth"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Which action created the partition, and how many directories lie between it and the table."""

    commit_time: str
    depth: int


def encode_partition_metadata(*, commit_time: str, depth: int) -> bytes:
    """The file's bytes; `depth` is 0 for the base path of a table without partitions."""
    return encode_properties({_COMMIT_TIME: commit_time, _DEPTH: str(depth)}, comment="partition metadata")


def decode_partition_metadata(data: bytes, *, file: str) -> PartitionMetadata:
    """What the file says."""
    properties = decode_properties(data, file=file)
    depth = properties.get(_DEPTH, "").strip()
    if _COMMIT_TIME not in properties or not (depth.isascii() and depth.isdigit() and len(depth) < 10):
        raise CorruptTableError(file=file, reason=f"lacks {_COMMIT_TIME}, or {_DEPTH} as a number")
    return PartitionMetadata(properties[_COMMIT_TIME], int(depth))
