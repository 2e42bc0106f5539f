"""Values that different rows could share a key or a partition with, though the rows are not the same.

Hudi joins the parts of a composite key, and the columns of a partition path, without escaping them, and gives missing
values a name. Two rows may then differ in their columns and still have one key in one partition, where the later row
replaces the earlier one. Which of the two is in the table cannot be told from its key or path. A value that makes
that possible is therefore refused, whether or not its twin is there: for writes and for deletes alike.

Values that a date pattern brings into one partition are not concerned: that is what the pattern is for.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import column_values
from tablekeeper.record.keys import EMPTY_PART, NULL_PART, KeySpec
from tablekeeper.record.partition_paths import NULL_PARTITION, PartitionSpec

__all__ = ["refuse_ambiguous_keys", "refuse_ambiguous_partitions"]

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
