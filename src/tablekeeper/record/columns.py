"""Finding columns by name in Arrow data, nested ones by dotted path.

An unknown name is always reported with the nearest existing one, because most unknown
names are typing mistakes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError

__all__ = ["column_type", "column_values", "columns_holding", "combined", "nearest_name_hint"]


def column_values(data: pa.RecordBatch | pa.Table, path: str) -> pa.Array | pa.ChunkedArray:
    """The values of the column at `path` (`a` or `a.b.c`); a null struct has null fields."""
    column_type(data.schema, path)
    first, *rest = _steps(data.schema, path)
    values = data.column(data.schema.get_field_index(first))
    return pc.struct_field(values, rest) if rest else values


def column_type(schema: pa.Schema, path: str) -> pa.DataType:
    """The type of the column at `path`; raises InvalidRequestError naming the nearest column if there is none."""
    first, *rest = _steps(schema, path)
    positions = schema.get_all_field_indices(first)
    if len(positions) != 1:
        if positions:
            raise InvalidRequestError(f"column {first} occurs {len(positions)} times in the data: rename the copies.")
        raise InvalidRequestError(f"no column {path} in the data{nearest_name_hint(path, schema.names)}")
    found = schema.field(positions[0]).type
    for step in rest:
        children = [child.name for child in found] if pa.types.is_struct(found) else []
        if step not in children:
            parent = path[: path.index(step) - 1] if step in path else first
            known = [f"{parent}.{child}" for child in children]
            raise InvalidRequestError(f"no column {path} in the data{nearest_name_hint(path, known or schema.names)}")
        found = found.field(children.index(step)).type
    return found


def columns_holding(paths: Iterable[str], schema: pa.Schema) -> pa.Schema:
    """The columns that these fields are, or lie inside of."""
    names = {path if path in schema.names else path.split(".")[0] for path in paths}
    return pa.schema([field for field in schema if field.name in names])


def combined(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of all chunks."""
    if isinstance(values, pa.ChunkedArray):
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    return values


def nearest_name_hint(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, or the list of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or difflib.get_close_matches(
        name.lower(), [other for other in names if other.lower() == name.lower()] or names, n=1, cutoff=0.4
    )
    if near:
        return f"; did you mean {near[0]}?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"; its columns are: {shown}." if names else "; it has no columns."


def _steps(schema: pa.Schema, path: str) -> list[str]:
    """The names to follow from the top; a column whose own name holds dots is taken as it is."""
    return [path] if path in schema.names else path.split(".")
