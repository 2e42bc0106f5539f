"""Schema evolution on write: what a table's schema becomes when data of another schema arrives.

Allowed are new nullable columns, at any depth, and of Hudi's promotions those between numbers: int to
long, float or double, long to float or double, float to double, and decimals with more digits. Hudi also
lets every number become a string, but no later write can take that back, and one batch with a wrong type is
enough for it: a column becomes a string only if the caller asks for it. Data may be narrower than the table and
may lack nullable columns. Anything else is refused with every difference listed. The table's columns keep their
order and come first, so that a schema without news is the same schema.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa

from tablekeeper.config.keys import WIDEN_TO_STRING
from tablekeeper.record.conform import META_COLUMNS, conform, promotes, refuse, storable_schema, stored_fields

__all__ = ["Evolution", "TypeChange", "conform", "plan_evolution", "storable_schema"]


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A column whose type gets wider."""

    column: str
    before: pa.DataType
    after: pa.DataType


@dataclass(frozen=True, slots=True)
class Evolution:
    """The schema after the write, and what is new in it. `missing` are columns that the data lacks."""

    schema: pa.Schema
    added: tuple[str, ...]
    widened: tuple[TypeChange, ...]
    missing: tuple[str, ...]


@dataclass(slots=True)
class _Findings:
    widens_to_string: bool
    never_strings: frozenset[str]
    added: list[str] = field(default_factory=list)
    widened: list[TypeChange] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def plan_evolution(
    table: pa.Schema, incoming: pa.Schema, *, widens_to_string: bool = False, never_strings: Collection[str] = ()
) -> Evolution:
    """The table's schema once data of schema `incoming` is written; raises InvalidRequestError if it does not fit.

    With `widens_to_string`, a number may become a string, but not in the top-level columns `never_strings`.
    """
    found = _Findings(widens_to_string, frozenset(never_strings))
    arriving = stored_fields(incoming, found.problems, untyped=frozenset(table.names))
    present = frozenset(incoming.names)
    fields = _merge_fields(list(table), arriving, parent="", untyped=present, found=found)
    refuse(found.problems, "the data does not fit the table")
    schema = pa.schema(fields, metadata=table.metadata) if found.added or found.widened else table
    return Evolution(schema, tuple(found.added), tuple(found.widened), tuple(found.missing))


def _merge_fields(
    table: list[pa.Field], incoming: list[pa.Field], *, parent: str, untyped: frozenset[str], found: _Findings
) -> list[pa.Field]:
    prefix = f"{parent}." if parent else ""
    arriving = {child.name: child for child in incoming}
    known = {child.name.lower(): child.name for child in table}
    merged: list[pa.Field] = []
    for child in table:
        path = f"{prefix}{child.name}"
        other = arriving.get(child.name)
        if other is not None:
            merged.append(child.with_type(_merge_types(child.type, other.type, path=path, found=found)))
            continue
        merged.append(child)
        if child.name not in untyped and child.name not in META_COLUMNS:
            found.missing.append(path)
            if not child.nullable:
                found.problems.append(f"column {path}: table has {child.type} not null, data has no such column")
    names = {child.name for child in table}
    for child in incoming:
        if child.name in names:
            continue
        path = f"{prefix}{child.name}"
        if child.name.lower() in known:
            found.problems.append(
                f"column {path}: table has {prefix}{known[child.name.lower()]}, which differs only in case"
            )
        found.added.append(path)
        merged.append(child)
    return merged


def _merge_types(table: pa.DataType, incoming: pa.DataType, *, path: str, found: _Findings) -> pa.DataType:
    """The type for both: the table's if the data fits into it, the data's if the table may become it."""
    if pa.types.is_struct(table) and pa.types.is_struct(incoming):
        return pa.struct(_merge_fields(list(table), list(incoming), parent=path, untyped=frozenset(), found=found))
    if pa.types.is_list(table) and pa.types.is_list(incoming):
        element = _merge_types(table.value_type, incoming.value_type, path=f"{path}.element", found=found)
        return pa.list_(table.value_field.with_type(element))
    if pa.types.is_map(table) and pa.types.is_map(incoming):
        value = _merge_types(table.item_type, incoming.item_type, path=f"{path}.value", found=found)
        return pa.map_(table.key_field, table.item_field.with_type(value))
    if _fits(incoming, table):
        return table
    promoted = promotes(table, incoming)
    reason = _why_no_string(path, found) if promoted and pa.types.is_string(incoming) else ""
    if promoted and not reason:
        found.widened.append(TypeChange(path, table, incoming))
        return incoming
    found.problems.append(f"column {path}: table has {table}, data has {incoming}{reason}")
    return table


def _why_no_string(path: str, found: _Findings) -> str:
    """Why the numbers of this column may not become strings; empty if they may."""
    if path in found.never_strings or path.split(".", maxsplit=1)[0] in found.never_strings:
        return ", and a column of the key, ordering or partitions never becomes a string: cast the data"
    if not found.widens_to_string:
        return f", and numbers become strings only if asked for: cast the data, or pass {WIDEN_TO_STRING}=true"
    return ""


def _fits(incoming: pa.DataType, table: pa.DataType) -> bool:
    if promotes(incoming, table):
        return True
    if pa.types.is_timestamp(incoming) and pa.types.is_timestamp(table):
        # Milliseconds and microseconds hold the same moments as far as the values are exact, which the cast checks.
        return (incoming.tz is None) == (table.tz is None)
    if pa.types.is_fixed_size_binary(table):
        return bool(pa.types.is_binary(incoming))
    if pa.types.is_fixed_size_binary(incoming):
        return bool(pa.types.is_binary(table))
    return bool(pa.types.is_decimal(table) and incoming in (pa.int32(), pa.int64()))
