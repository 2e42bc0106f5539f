"""Instants: the points of a table's timeline.

`RequestedTime` (when an action started) and `CompletionTime` (when it became visible) are
different types on purpose: which of the two is compared decides whether conflict detection
and incremental planning are right, so comparing one with the other is a `TypeError`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from tablekeeper.model.actions import Action

__all__ = ["CompletionTime", "Instant", "RequestedTime", "State"]

_FULL_LENGTH = 17


class _InstantTime:
    """Digits `yyyyMMddHHmmssSSS`. Old tables have 14 digits, which order as if padded with 999.

    `order` sorts as the time itself does, among times of one kind, and faster.
    """

    __slots__ = ("order", "value")
    value: str
    order: str

    def __init__(self, value: str) -> None:
        if not value.isascii() or not value.isdigit():
            raise ValueError(f"an instant time has digits only, not {value!r}")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "order", value + "999" if len(value) == _FULL_LENGTH - 3 else value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[type[_InstantTime], tuple[str]]:
        return type(self), (self.value,)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.value == other.value

    def __lt__(self, other: _InstantTime) -> bool:
        return self.order < self._comparable(other).order

    def __le__(self, other: _InstantTime) -> bool:
        return self.order <= self._comparable(other).order

    def __gt__(self, other: _InstantTime) -> bool:
        return self.order > self._comparable(other).order

    def __ge__(self, other: _InstantTime) -> bool:
        return self.order >= self._comparable(other).order

    def _comparable(self, other: _InstantTime) -> _InstantTime:
        if type(other) is not type(self):
            raise TypeError(f"a {type(self).__name__} does not compare with a {type(other).__name__}")
        return other

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class RequestedTime(_InstantTime):
    """When an action was put on the timeline; the action's identity."""

    __slots__ = ()


class CompletionTime(_InstantTime):
    """When an action completed and became visible to readers."""

    __slots__ = ()


class State(enum.Enum):
    """How far an instant has come."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"

    __hash__ = object.__hash__

    @property
    def rank(self) -> int:
        """0, 1, 2: the later state of an instant counts."""
        return _STATE_RANK[self]


_STATE_RANK = {State.REQUESTED: 0, State.INFLIGHT: 1, State.COMPLETED: 2}


@dataclass(frozen=True, slots=True)
class Instant:
    """One action on the timeline in its latest state. `completed_at` is set exactly when completed."""

    requested_at: RequestedTime
    action: Action
    state: State
    completed_at: CompletionTime | None = None

    @property
    def is_completed(self) -> bool:
        return self.state is State.COMPLETED

    @property
    def is_pending(self) -> bool:
        return self.state is not State.COMPLETED

    def __str__(self) -> str:
        return f"{self.requested_at}.{self.action.value}.{self.state.value}"
