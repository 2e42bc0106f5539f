"""Record keys: one string a row that names the record for as long as it lives.

A simple key is the text of one column. A composite key names its fields: `f1:v1,f2:v2`, with
`__null__` and `__empty__` for parts that are missing. Values are not escaped, as in Hudi.
A row without any key value cannot be found again, so it is refused with the number of such rows.

Neither the parts of a composite key nor the columns of a partition path are escaped when they are joined, and missing
values get a name. Two rows may then differ in their columns and still have one key in one partition, where the later
row replaces the earlier one. Which of the two is in the table cannot be told from its key or path. A value that makes
that possible is refused, whether or not its twin is there: for writes and for deletes alike. Values that a date pattern
brings into one partition are not concerned: that is what the pattern is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import column_values, format_values
from tablekeeper.record.partition_paths import NULL_PARTITION, PartitionSpec

__all__ = [
    "EMPTY_PART",
    "NULL_PART",
    "KeySpec",
    "bucket_field_values",
    "key_spec",
    "record_keys",
    "refuse_ambiguous_keys",
    "refuse_ambiguous_partitions",
]

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


def key_spec(config: TableConfig) -> KeySpec:
    """How the record key of a row is made."""
    return KeySpec(config.key_fields, config.composite_key)


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


_ENCODED = "; values with '/' can be written to a table that was created with URL-encoded partition paths"


def refuse_ambiguous_keys(rows: pa.Table, spec: KeySpec, *, keys: pa.Array | pa.ChunkedArray) -> None:
    """Raise `InvalidRequestError` if one of `keys`, the record keys of `rows`, could belong to another row as well."""
    if not spec.composite:
        return
    texts = {field: values for field in spec.fields if _is_text(values := column_values(rows, field))}
    for field, values in texts.items():
        for mark, meaning in ((NULL_PART, "a missing value"), (EMPTY_PART, "an empty text")):
            if _any(pc.equal(values, mark)):
                raise InvalidRequestError(
                    f"key column {field} holds {mark!r}, which stands for {meaning} in a composite key: "
                    "the two rows would become one. Change the value."
                )
    if not any(_any(pc.match_substring(values, ",")) for values in texts.values()):
        return
    for field in spec.fields[1:]:
        separator = f",{field}:"
        twice = pc.greater(pc.count_substring(keys, separator), 1)
        if _any(twice):
            example = keys.filter(twice)[0].as_py()
            raise InvalidRequestError(
                f"the record key {example!r} can be read in two ways, since a value of a key column holds "
                f"{separator!r}: two different rows would become one. Change the value, or use another key."
            )


def refuse_ambiguous_partitions(rows: pa.Table, spec: PartitionSpec, *, paths: pa.DictionaryArray) -> None:
    """Raise `InvalidRequestError` if one of `paths`, the partitions of `rows`, could come from other values as well."""
    found = paths.dictionary.to_pylist()
    if any(NULL_PARTITION in path for path in found):
        _refuse_texts_for_nothing(rows, spec)
    if spec.slash_separated_dates and len(spec.fields) == 1:
        values = column_values(rows, spec.fields[0].name)
        if _is_text(values) and _any(pc.match_substring(values, "/")):
            raise _unclear(spec.fields[0].name, "a value with '/' has the path of the date with '-'")
    if len(spec.fields) > 1 and not spec.url_encode:
        for path in found:
            _refuse_unclear_borders(path, spec)


def _refuse_texts_for_nothing(rows: pa.Table, spec: PartitionSpec) -> None:
    for field in spec.fields:
        values = column_values(rows, field.name)
        if field.kind != "simple" or not _is_text(values):
            continue
        for text in ("", NULL_PARTITION):
            if _any(pc.equal(values, text)):
                raise _unclear(field.name, f"the text {text!r} has the path of a missing value ({NULL_PARTITION})")


def _refuse_unclear_borders(path: str, spec: PartitionSpec) -> None:
    if spec.hive_style:
        unclear = any(f"/{path}".count(f"/{field.name}=") > 1 for field in spec.fields)
    else:
        # A date pattern may have slashes of its own, as many in every value; a missing value has none.
        own = sum(field.timestamp.output_format.count("/") for field in spec.fields if field.timestamp is not None)
        unclear = path.count("/") > len(spec.fields) - 1 + own
    if unclear:
        names = ", ".join(field.name for field in spec.fields)
        why = f"the path {path!r} does not tell where one value ends and the next begins"
        raise _unclear(names, why, other_way=_ENCODED)


def _unclear(column: str, why: str, *, other_way: str = "") -> InvalidRequestError:
    return InvalidRequestError(
        f"partition column {column}: {why}, so that different rows would become one. Change the value{other_way}."
    )


def _is_text(values: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def _any(mask: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pc.any(mask).as_py())
