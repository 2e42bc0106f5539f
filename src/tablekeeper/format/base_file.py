"""Base files: their names, and the key/value metadata in their Parquet footers.

The key range and the bloom filter in the footer serve the index of a Java writer; a table whose base
files lack them is readable, but Java's BLOOM index fails on it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError

__all__ = ["BaseFooter", "BaseName", "decode_base_name", "decode_footer", "encode_base_name", "encode_footer"]

_NAME = re.compile(r"([^_./]+)_([^_./]+)_(\d+)\.parquet", re.ASCII)

_SCHEMA = "parquet.avro.schema"
_MODEL = "writer.model.name"
_MIN_KEY = "hoodie_min_record_key"
_MAX_KEY = "hoodie_max_record_key"
_BLOOM = "org.apache.hudi.bloomfilter"
_OLD_BLOOM = "com.uber.hoodie.bloomfilter"
_BLOOM_TYPE = "hoodie_bloom_filter_type_code"
_DEFAULT_BLOOM_TYPE = "SIMPLE"


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
    return footer


def decode_footer(metadata: Mapping[bytes, bytes], *, file: str) -> BaseFooter:
    """What the key/value metadata of a Parquet file says."""
    bloom = _text(metadata, _BLOOM, file=file) or _text(metadata, _OLD_BLOOM, file=file)
    bloom_type = _text(metadata, _BLOOM_TYPE, file=file)
    return BaseFooter(
        avro_schema_json=_text(metadata, _SCHEMA, file=file),
        min_key=_text(metadata, _MIN_KEY, file=file),
        max_key=_text(metadata, _MAX_KEY, file=file),
        bloom=_base64(bloom, file=file) if bloom else None,
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
