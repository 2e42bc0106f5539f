"""Row predicates: what `where=` and pushed filters say, readable as an Arrow filter, as SQL and for pruning.

A predicate comes from text (`parse_predicate`) or from structured filters (`from_comparisons`).
It keeps the rows for which it is true; null is not true.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.predicate_nodes import And, ColumnRange, Comparison, In, IsNull, Like, Not, Or, Predicate
from tablekeeper.record.predicate_parser import parse_predicate

__all__ = [
    "And",
    "ColumnRange",
    "Comparison",
    "In",
    "IsNull",
    "Like",
    "Not",
    "Or",
    "Predicate",
    "from_comparisons",
    "parse_predicate",
]

_OPERATORS = {"==": "=", "<>": "!="}
_WILDCARD = re.compile(r"([%_\\])")


def from_comparisons(comparisons: Sequence[tuple[str, str, Any]]) -> Predicate:
    """All of `(column, op, value)`.

    `op` is a comparison (= == != <> < <= > >=), `<=>` (null-safe equality), `in` or `not in` with
    a sequence of values, `is null` or `is not null` (the value is ignored), `like`, `not like`,
    `starts with`, `ends with` or `contains` with a text.
    """
    parts = tuple(_from_comparison(column, " ".join(op.lower().split()), value) for column, op, value in comparisons)
    if not parts:
        raise InvalidRequestError("a predicate needs at least one comparison.")
    return parts[0] if len(parts) == 1 else And(parts)


def _from_comparison(column: str, op: str, value: Any) -> Predicate:
    if op in ("in", "not in"):
        return In(column, tuple(value), op == "not in")
    if op in ("is null", "is not null"):
        return IsNull(column, op == "is not null")
    if op == "<=>":
        return IsNull(column) if value is None else Comparison(column, "=", value)
    shapes = {"like": "{}", "not like": "{}", "starts with": "{}%", "ends with": "%{}", "contains": "%{}%"}
    if op in shapes:
        if not isinstance(value, str):
            raise InvalidRequestError(f"column {column}: {op} takes a text, not {value!r}.")
        escaped = value if op.endswith("like") else _WILDCARD.sub(r"\\\1", value)
        return Like(column, shapes[op].format(escaped), op == "not like")
    return Comparison(column, _OPERATORS.get(op, op), value)
