"""Record keys: one string a row that names the record for as long as it lives.

A simple key is the text of one column. A composite key names its fields: `f1:v1,f2:v2`, with
`__null__` and `__empty__` for parts that are missing. Values are not escaped, as in Hudi.
A row without any key value cannot be found again, so it is refused with the number of such rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import column_values
from tablekeeper.record.values_text import format_values

__all__ = ["EMPTY_PART", "NULL_PART", "KeySpec", "bucket_field_values", "record_keys"]

NULL_PART = "__null__"
EMPTY_PART = "__empty__"
"""What stands in a composite key for parts that are missing or empty."""


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Which columns make the record key; `composite` chooses the form that names the fields."""

    fields: tuple[str, ...]
    composite: bool

    def __post_init__(self) -> None:
        if not self.fields or not all(self.fields):
            raise InvalidRequestError("a table needs at least one key column: pass key='<column>'.")
        if len(self.fields) > 1 and not self.composite:
            raise InvalidRequestError(f"a key of {len(self.fields)} columns has the composite form.")


def record_keys(batch: pa.RecordBatch | pa.Table, spec: KeySpec) -> pa.Array:
    """The record key of each row, as a string array without nulls."""
    texts = [format_values(column_values(batch, field)) for field in spec.fields]
    if not spec.composite:
        _refuse_missing(_missing(texts[0]), what=f"column {spec.fields[0]}")
        return texts[0]
    _refuse_missing(reduce(pc.and_, map(_missing, texts)), what=f"columns {', '.join(spec.fields)}")
    pieces: list[pa.Array | str] = []
    for position, (field, text) in enumerate(zip(spec.fields, texts, strict=True)):
        pieces += [f"{',' if position else ''}{field}:", _mark_empty(text)]
    return pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement=NULL_PART)


def bucket_field_values(
    batch: pa.RecordBatch | pa.Table, fields: tuple[str, ...], *, key: KeySpec | None = None
) -> list[pa.Array]:
    """The text of each field that the bucket index hashes; nulls stay null (they hash as 0).

    With `key`, the values are those that Java reads back out of the record key: in the order of
    the key's fields, and a composite key of one field counts as a whole (`id:5`), because Java
    takes a key apart only if it holds both `,` and `:`.
    """
    if key is None:
        return [format_values(column_values(batch, field)) for field in fields]
    texts = [format_values(column_values(batch, field)) for field in key.fields if field in fields]
    if key.composite and len(key.fields) == 1 and texts:
        whole = record_keys(batch, key)
        return [pc.if_else(pc.match_substring(texts[0], ","), texts[0], whole)]
    return [_read_back(text) for text in texts] if key.composite else texts


def _missing(text: pa.Array) -> pa.Array:
    return pc.or_kleene(pc.is_null(text), pc.equal(pc.binary_length(text), 0))


def _mark_empty(text: pa.Array) -> pa.Array:
    empty = pc.equal(pc.binary_length(text), 0)
    return pc.if_else(empty, EMPTY_PART, text) if pc.any(empty).as_py() else text


def _read_back(text: pa.Array) -> pa.Array:
    """The parts as Java finds them in a key, where a value may look like the mark of one that is missing."""
    without_nulls = pc.if_else(pc.equal(text, NULL_PART), None, text)
    return pc.if_else(pc.equal(without_nulls, EMPTY_PART), "", without_nulls)


def _refuse_missing(missing: pa.Array, *, what: str) -> None:
    count = pc.sum(missing).as_py() or 0
    if count:
        raise InvalidRequestError(
            f"{count} of {len(missing)} rows have a null or empty record key ({what}): "
            "give every row a key, or filter these rows out."
        )
