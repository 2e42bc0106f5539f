"""Secondary indexes of the metadata table: which record keys a value of a column has.

An entry is its key, `<value>$<record key>`, both escaped; what is stored under it says nothing but that it is there.
The value is the text of the column's value, a null character stands for null. Entries of one value lie in one shard,
by the hash of the escaped value and the `$` (since version V2 of the index).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hashing import java_string_hash
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.index_shard import IndexShard
from tablekeeper.format.metadata_avro import encode_secondary_index

__all__ = [
    "SECONDARY_INDEX_PREFIX",
    "SECONDARY_INDEX_VALUE",
    "SecondaryIndexShard",
    "has_indexed_text",
    "secondary_index_keys",
    "secondary_index_shards",
]

SECONDARY_INDEX_PREFIX = "secondary_index_"
"""How the partitions of the metadata table begin that are secondary indexes."""

SECONDARY_INDEX_VALUE = encode_secondary_index()
"""What is stored under each entry."""

_KIND = 7
_NULL = "\0"
_ESCAPED = ("\\", "$", _NULL)
_VALUE = r"(?s)^(?P<value>(?:[^\\$]|\\.)*\$)"


class SecondaryIndexShard(IndexShard):
    """One shard of a secondary index."""

    def _stored(self, hfile: HFileReader, *, schema_json: str, file: str) -> Iterator[tuple[bytes, bytes | None]]:
        for key, value in hfile.items():
            # Java's compactions fill the meta columns of what they merge.
            is_there = value == SECONDARY_INDEX_VALUE or not _is_deleted(value, schema_json=schema_json, file=file)
            yield key, SECONDARY_INDEX_VALUE if is_there else None


def has_indexed_text(data_type: pa.DataType) -> bool:
    """Whether Java's text of values of this type is known: of texts and whole numbers.

    Of dates, times and fractions Java has more than one, by the way that a row takes.
    """
    return bool(
        pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_signed_integer(data_type)
    )


def secondary_index_keys(values: pa.Array, keys: pa.Array) -> pa.Array:
    """The entries of rows with these values and record keys."""
    texts = pc.fill_null(_escaped(values.cast(pa.large_string())), _NULL)
    return pc.binary_join_element_wise(texts, _escaped(keys.cast(pa.large_string())), pa.scalar("$", pa.large_string()))


def secondary_index_shards(entries: pa.Array, *, shards: int) -> npt.NDArray[np.int64]:
    """The number of the shard that each entry belongs to."""
    values = pc.extract_regex(entries, pattern=_VALUE).field("value")
    return np.asarray(np.abs(java_string_hash(values).astype(np.int64)) % shards)


def _escaped(texts: pa.Array) -> pa.Array:
    for character in _ESCAPED:
        texts = pc.replace_substring(texts, pattern=character, replacement="\\" + character)
    return texts


def _is_deleted(value: bytes, *, schema_json: str, file: str) -> bool:
    try:
        record: Any = fastavro.schemaless_reader(io.BytesIO(value), _parsed(schema_json), None)
        if record["type"] != _KIND:
            raise ValueError(f"a record of type {record['type']}")
        return bool(record["SecondaryIndexMetadata"]["isDeleted"])
    except Exception as error:  # fastavro raises many kinds on bytes that are not Avro
        reason = f"an entry of a secondary index does not decode ({type(error).__name__}: {error})"
        raise CorruptTableError(file=file, reason=reason) from error


@lru_cache(maxsize=16)
def _parsed(schema_json: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_json))
