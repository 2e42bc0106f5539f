"""Pictures for the pages: a table's timeline as bars, and counts over time, as SVG elements with a text for each.

Pure functions from values to shapes; the templates write the tags, so that every text is escaped there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tablekeeper.model import Instant

__all__ = ["Bar", "TimelinePicture", "draw_timeline"]

_WIDTH = 960
_LANE_HEIGHT = 18
_LABEL_WIDTH = 130
_LEAST_BAR = 4
_MOST_INSTANTS = 80


@dataclass(frozen=True, slots=True)
class Bar:
    """One instant: where it stands, how it looks (`state` is a CSS class) and what it says."""

    x: float
    y: int
    width: float
    height: int
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """Lanes by action, bars from request to completion; those that are pending go on to the right edge.

    Moments stand in their order at equal distances: what overlaps is seen, however far apart in time the rest is.
    """

    width: int
    height: int
    lanes: tuple[tuple[str, int], ...]
    bars: tuple[Bar, ...]
    begin: str
    end: str
    hidden: int


def draw_timeline(instants: Sequence[Instant], *, now_ms: int) -> TimelinePicture:
    """The newest instants of a timeline."""
    shown = list(instants)[-_MOST_INSTANTS:]
    lanes = sorted({instant.action.completed_as.value for instant in shown})
    spans = [(_ms(i.requested_at.value), _ms(i.completed_at.value) if i.completed_at else now_ms) for i in shown]
    begin = min((start for start, _ in spans), default=now_ms)
    end = max([now_ms if any(i.is_pending for i in shown) else 0, *(finish for _, finish in spans)], default=now_ms)
    places = _places([moment for span in spans for moment in span])
    bars = tuple(
        _bar(instant, span, lane=lanes.index(instant.action.completed_as.value), places=places)
        for instant, span in zip(shown, spans, strict=True)
    )
    return TimelinePicture(
        width=_WIDTH,
        height=max(1, len(lanes)) * _LANE_HEIGHT + 4,
        lanes=tuple((name, number * _LANE_HEIGHT + _LANE_HEIGHT - 5) for number, name in enumerate(lanes)),
        bars=bars,
        begin=_shown(begin),
        end=_shown(end),
        hidden=len(instants) - len(shown),
    )


def _places(moments: Sequence[int]) -> Mapping[int, float]:
    """Where each moment stands."""
    ordered = sorted(set(moments))
    step = (_WIDTH - _LABEL_WIDTH - _LEAST_BAR) / max(1, len(ordered) - 1)
    return {moment: _LABEL_WIDTH + number * step for number, moment in enumerate(ordered)}


def _bar(instant: Instant, span: tuple[int, int], *, lane: int, places: Mapping[int, float]) -> Bar:
    start, finish = span
    completed = f", completed {_shown(finish)}" if instant.completed_at is not None else ", not completed"
    return Bar(
        x=round(places[start], 1),
        y=lane * _LANE_HEIGHT + 2,
        width=round(max(_LEAST_BAR, places[finish] - places[start]), 1),
        height=_LANE_HEIGHT - 6,
        state=instant.state.value,
        text=f"{instant.action.value} {instant.state.value}: requested {_shown(start)}{completed}",
    )


def _ms(instant_time: str) -> int:
    """The moment of an instant time, close enough for a picture: its zone does not matter here."""
    parsed = datetime.strptime(instant_time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(parsed.timestamp() * 1000) + int(instant_time[14:17] or 0)


def _shown(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
