"""What results and listings have in common: they print well, and turn into plain values for programs and JSON."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar, cast

from tablekeeper.model.instants import CompletionTime, RequestedTime

__all__ = ["Listing", "Result", "plain"]

E = TypeVar("E")


class Result:
    """A dataclass whose fields say what was done."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, by name."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(cast(Any, self))}


class Listing(Generic[E]):
    """A dataclass with one field, a tuple of values that can be counted, walked through and looked up."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries)

    def __getitem__(self, position: int) -> E:
        return self._entries[position]

    def to_dicts(self) -> list[dict[str, Any]]:
        """The values as plain ones, in their order."""
        return [plain(each) for each in self]

    @property
    def _entries(self) -> tuple[E, ...]:
        (only,) = fields(cast(Any, self))
        return cast(tuple[E, ...], getattr(self, only.name))


def plain(value: Any) -> Any:
    """`value` in terms of JSON: times and enums as their text, seconds to the millisecond, results as dictionaries."""
    if isinstance(value, RequestedTime | CompletionTime | enum.Enum):
        return value.value
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value.to_dict() if hasattr(value, "to_dict") else value
