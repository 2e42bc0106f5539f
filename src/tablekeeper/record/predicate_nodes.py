"""The tree of a row predicate and its four readings: Arrow filter, SQL text, pruning by statistics, by partition.

SQL's logic has three values, but a filter keeps a row only where the predicate is true. Every
reading therefore first moves `not` down to the comparisons, where null and false may be taken
together, and then only and/or remain.

Floating point follows Spark: not-a-number is greater than every number. Statistics say nothing
about it, so pruning keeps a file wherever one could match.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.columns import column_type, parse_value
from tablekeeper.record.partition_paths import NULL_PARTITION
from tablekeeper.record.predicate_arrow import column_ref, compare_filter, in_filter, plain_type, regex_filter
from tablekeeper.record.predicate_literals import (
    UNKNOWN,
    Literal,
    beside_sample,
    beside_type,
    check_literal,
    literal_sql,
    name_sql,
    text_sql,
)

__all__ = ["And", "ColumnRange", "Comparison", "In", "IsNull", "Like", "Not", "Or", "Predicate"]

_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """What statistics say about one column of some rows; None is unknown.

    `minimum` and `maximum` are bounds of the values that are neither null nor not-a-number, tight or
    not. `value_count` counts rows, nulls included. `nan_count` is 0 only when known to be.
    """

    minimum: Any = None
    maximum: Any = None
    null_count: int | None = None
    value_count: int | None = None
    nan_count: int | None = None

    @property
    def only_nulls(self) -> bool:
        """Whether it is certain that no row has a value."""
        return self.value_count is not None and self.null_count == self.value_count

    @property
    def may_hold_nan(self) -> bool:
        """Whether a not-a-number may hide outside the bounds."""
        known_other = [
            bound for bound in (self.minimum, self.maximum) if bound is not None and not isinstance(bound, float)
        ]
        return not known_other and self.nan_count != 0


class Predicate(abc.ABC):
    """A condition on rows. Immutable; equal if written the same, `between` and flipped sides aside."""

    __slots__ = ()

    @abc.abstractmethod
    def columns(self) -> frozenset[str]:
        """The columns that it reads, nested ones as dotted paths."""

    @abc.abstractmethod
    def to_sql(self, schema: pa.Schema | None = None) -> str:
        """Spark SQL text. With a schema, literals have the column's type and times a zone, whatever the session's."""

    @abc.abstractmethod
    def negated(self) -> Predicate:
        """A predicate that is true exactly where this one is false (not where it is null)."""

    @abc.abstractmethod
    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        """Like `to_arrow`, for a tree without `not` above the comparisons."""

    @abc.abstractmethod
    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        """Like `may_match`, for a tree without `not` above the comparisons."""

    def pushed_down(self) -> Predicate:
        """The same condition with `not` only inside comparisons."""
        return self

    def to_arrow(self, schema: pa.Schema) -> pc.Expression:
        """A filter over data of this schema that keeps the rows where the predicate is true."""
        for column in sorted(self.columns()):
            column_type(schema, column)
        return self.pushed_down().arrow_filter(schema)

    def may_match(self, ranges: Mapping[str, ColumnRange]) -> bool:
        """False only if the statistics prove that no row matches. Columns without a range are unknown."""
        return self.pushed_down().may_be_true(ranges)

    def may_match_partition(self, values: Mapping[str, str | None], schema: pa.Schema) -> bool:
        """False only if no row of a partition with these path values matches. None is the path of a missing value."""
        known = {
            column: _partition_ranges(text, schema.field(column).type)
            for column, text in values.items()
            if column in schema.names and column in self.columns()
        }
        chosen = {column: ranges for column, ranges in known.items() if ranges}
        return any(
            self.may_match(dict(zip(chosen, ranges, strict=True))) for ranges in itertools.product(*chosen.values())
        )

    def __str__(self) -> str:
        return self.to_sql()


def _partition_ranges(text: str | None, kind: pa.DataType) -> tuple[ColumnRange, ...]:
    """What the column may hold in such a partition: values of one of these ranges, or anything if there is none."""
    if text is None:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            # Null and the empty text, or a text that happens to be the name of that partition.
            return ColumnRange(minimum="", maximum=""), ColumnRange(minimum=NULL_PARTITION, maximum=NULL_PARTITION)
        return () if pa.types.is_binary(kind) else (ColumnRange(null_count=1, value_count=1),)
    try:
        value = parse_value(text, kind)
    except (ValueError, pa.ArrowException, OverflowError):
        return ()
    if isinstance(value, float) and math.isnan(value):
        return ()
    return (ColumnRange(minimum=value, maximum=value, null_count=0, value_count=1, nan_count=0),)


@dataclass(frozen=True, slots=True)
class Comparison(Predicate):
    """`column op value`; comparing with null is never true."""

    column: str
    op: str
    value: Literal

    def __post_init__(self) -> None:
        if self.op not in _NEGATED:
            raise InvalidRequestError(f"unknown comparison {self.op!r}: use one of {' '.join(_NEGATED)}.")
        check_literal(self.value)

    def columns(self) -> frozenset[str]:
        return frozenset({self.column})

    def negated(self) -> Predicate:
        return dataclasses.replace(self, op=_NEGATED[self.op])

    def to_sql(self, schema: pa.Schema | None = None) -> str:
        return f"{name_sql(self.column)} {self.op} {_typed_sql(self.value, self.column, schema)}"

    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        if self.value is None:
            return pc.scalar(False)
        return compare_filter(schema, self.column, self.op, self.value)

    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        if self.value is None:
            return False
        known = ranges.get(self.column)
        return known is None or _comparison_may_be_true(self.op, self.value, known)


@dataclass(frozen=True, slots=True)
class In(Predicate):
    """`column [not] in (values)`; a null among the values makes `not in` never true."""

    column: str
    values: tuple[Literal, ...]
    excluded: bool = False

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidRequestError(f"the list of values for column {self.column} is empty.")
        for value in self.values:
            check_literal(value)

    def columns(self) -> frozenset[str]:
        return frozenset({self.column})

    def negated(self) -> Predicate:
        return dataclasses.replace(self, excluded=not self.excluded)

    def to_sql(self, schema: pa.Schema | None = None) -> str:
        listed = ", ".join(_typed_sql(value, self.column, schema) for value in self.values)
        return f"{name_sql(self.column)} {'not in' if self.excluded else 'in'} ({listed})"

    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        if self.excluded and None in self.values:
            return pc.scalar(False)
        accepted = in_filter(schema, self.column, [value for value in self.values if value is not None])
        return column_ref(schema, self.column).is_valid() & ~accepted if self.excluded else accepted

    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        known = ranges.get(self.column)
        if self.excluded:
            if None in self.values:
                return False
            return known is None or all(_comparison_may_be_true("!=", value, known) for value in self.values)
        candidates = [value for value in self.values if value is not None]
        return bool(candidates) if known is None else any(_comparison_may_be_true("=", v, known) for v in candidates)


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """`column is [not] null`."""

    column: str
    excluded: bool = False

    def columns(self) -> frozenset[str]:
        return frozenset({self.column})

    def negated(self) -> Predicate:
        return dataclasses.replace(self, excluded=not self.excluded)

    def to_sql(self, schema: pa.Schema | None = None) -> str:
        return f"{name_sql(self.column)} is {'not null' if self.excluded else 'null'}"

    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        ref = column_ref(schema, self.column)
        return ref.is_valid() if self.excluded else ref.is_null()

    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        known = ranges.get(self.column)
        if known is None:
            return True
        return not known.only_nulls if self.excluded else known.null_count != 0 and known.value_count != 0


@dataclass(frozen=True, slots=True)
class Like(Predicate):
    """`column [not] like 'pattern'`: `%` any text, `_` one character, backslash before a wildcard takes it as it is."""

    column: str
    pattern: str
    excluded: bool = False

    def columns(self) -> frozenset[str]:
        return frozenset({self.column})

    def negated(self) -> Predicate:
        return dataclasses.replace(self, excluded=not self.excluded)

    def to_sql(self, schema: pa.Schema | None = None) -> str:
        return f"{name_sql(self.column)} {'not like' if self.excluded else 'like'} {text_sql(self.pattern)}"

    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        found = regex_filter(schema, self.column, self._regex())
        return column_ref(schema, self.column).is_valid() & ~found if self.excluded else found

    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        known = ranges.get(self.column)
        if known is None or known.only_nulls or self.excluded:
            return known is None or not known.only_nulls
        prefix = self._prefix()
        low, high = (
            beside_sample(prefix, b) if isinstance(b, str) else UNKNOWN for b in (known.minimum, known.maximum)
        )
        # All texts with the prefix lie between the prefix and the prefix followed by anything.
        below = low is not UNKNOWN and known.minimum > prefix and not known.minimum.startswith(prefix)
        above = high is not UNKNOWN and known.maximum < prefix
        return not (below or above)

    def _tokens(self) -> list[str]:
        return re.findall(r"\\[%_\\]|.", self.pattern, flags=re.DOTALL)

    def _prefix(self) -> str:
        prefix = ""
        for token in self._tokens():
            if token in ("%", "_"):
                break
            prefix += token[-1]
        return prefix

    def _regex(self) -> str:
        wild = {"%": "(?s:.*)", "_": "(?s:.)"}
        return "^" + "".join(wild.get(token, re.escape(token[-1])) for token in self._tokens()) + r"\z"


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """`not operand`."""

    operand: Predicate

    def columns(self) -> frozenset[str]:
        return self.operand.columns()

    def negated(self) -> Predicate:
        return self.operand.pushed_down()

    def pushed_down(self) -> Predicate:
        return self.operand.negated()

    def to_sql(self, schema: pa.Schema | None = None) -> str:
        return f"not ({self.operand.to_sql(schema)})"

    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        return self.pushed_down().arrow_filter(schema)

    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        return self.pushed_down().may_be_true(ranges)


@dataclass(frozen=True, slots=True)
class _Joined(Predicate):
    """Operands joined by one word; always at least two of them."""

    operands: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        if len(self.operands) < 2:
            raise InvalidRequestError("and/or join at least two conditions.")

    def columns(self) -> frozenset[str]:
        return frozenset().union(*(operand.columns() for operand in self.operands))

    def _sql(self, word: str, schema: pa.Schema | None) -> str:
        texts = ((operand, operand.to_sql(schema)) for operand in self.operands)
        return f" {word} ".join(f"({sql})" if isinstance(operand, _Joined) else sql for operand, sql in texts)


@dataclass(frozen=True, slots=True)
class And(_Joined):
    """All operands."""

    def negated(self) -> Predicate:
        return Or(tuple(operand.negated() for operand in self.operands))

    def pushed_down(self) -> Predicate:
        return And(tuple(operand.pushed_down() for operand in self.operands))

    def to_sql(self, schema: pa.Schema | None = None) -> str:
        return self._sql("and", schema)

    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        first, *rest = (operand.arrow_filter(schema) for operand in self.operands)
        for other in rest:
            first = first & other
        return first

    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        return all(operand.may_be_true(ranges) for operand in self.operands)


@dataclass(frozen=True, slots=True)
class Or(_Joined):
    """Any operand."""

    def negated(self) -> Predicate:
        return And(tuple(operand.negated() for operand in self.operands))

    def pushed_down(self) -> Predicate:
        return Or(tuple(operand.pushed_down() for operand in self.operands))

    def to_sql(self, schema: pa.Schema | None = None) -> str:
        return self._sql("or", schema)

    def arrow_filter(self, schema: pa.Schema) -> pc.Expression:
        first, *rest = (operand.arrow_filter(schema) for operand in self.operands)
        for other in rest:
            first = first | other
        return first

    def may_be_true(self, ranges: Mapping[str, ColumnRange]) -> bool:
        return any(operand.may_be_true(ranges) for operand in self.operands)


def _comparison_may_be_true(op: str, value: Literal, known: ColumnRange) -> bool:
    """Whether some row within the bounds may compare so; bounds that do not order with the value are unknown."""
    if known.only_nulls:
        return False
    low = UNKNOWN if known.minimum is None else beside_sample(value, known.minimum)
    high = UNKNOWN if known.maximum is None else beside_sample(value, known.maximum)
    if op in (">", ">=", "!=") and known.may_hold_nan:
        return True
    below_all = low is not UNKNOWN and low < known.minimum
    above_all = high is not UNKNOWN and high > known.maximum
    at_low = low is not UNKNOWN and low == known.minimum
    at_high = high is not UNKNOWN and high == known.maximum
    impossible = {
        "=": below_all or above_all,
        "!=": at_low and at_high,
        "<": below_all or at_low,
        "<=": below_all,
        ">": above_all or at_high,
        ">=": above_all,
    }
    return not impossible[op]


def _typed_sql(value: Literal, column: str, schema: pa.Schema | None) -> str:
    if schema is None or value is None:
        return literal_sql(value)
    kind = plain_type(schema, column)
    if pa.types.is_timestamp(kind):
        text = literal_sql(beside_type(value, kind, column=column))
        return text if kind.tz else text.replace("timestamp", "timestamp_ntz", 1)
    if pa.types.is_date(kind):
        return literal_sql(beside_type(value, kind, column=column))
    return literal_sql(value)
