"""A table's timeline as a picture, its read amplification over time and its file sizes, as shapes with a text for each.

Pure functions from values to shapes; the templates write the tags, so that every text is escaped there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tablekeeper.model import Action, FileSlice, Instant
from tablekeeper.server.dashboard.plots import Plot, draw_steps
from tablekeeper.timeline import parse_time

__all__ = [
    "Bar",
    "SizeClass",
    "TimelinePicture",
    "draw_amplification",
    "draw_timeline",
    "size_classes",
]

_WIDTH = 960
_LANE_HEIGHT = 24
_LABEL_WIDTH = 130
_LEAST_BAR = 5
_MOST_INSTANTS = 80
_MIB = 1 << 20
_CLASSES = (
    (_MIB, "below 1 MiB"),
    (16 * _MIB, "1 to 16 MiB"),
    (64 * _MIB, "16 to 64 MiB"),
    (120 * _MIB, "64 to 120 MiB"),
)
_LARGEST = "120 MiB and more"


@dataclass(frozen=True, slots=True)
class Bar:
    """A state of an instant: where it stands, how it looks (`state` is a CSS class) and what it says."""

    x: float
    y: int
    width: float
    height: int
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """Lanes by action, a bar from request to completion; those that are pending go on to the right edge.

    Moments stand in their order at equal distances: what overlaps is seen, however far apart in time the rest is.
    """

    width: int
    height: int
    label_width: int
    lane_height: int
    lanes: tuple[tuple[str, int], ...]
    bars: tuple[Bar, ...]
    begin: str
    end: str
    hidden: int


@dataclass(frozen=True, slots=True)
class SizeClass:
    """How many base files have a size of this class, and how many bytes they hold together."""

    name: str
    files: int
    bytes: int


def draw_timeline(instants: Sequence[Instant], *, now_ms: int, zone: str) -> TimelinePicture:
    """The newest instants of a timeline. `zone` is that of its times."""
    shown = list(instants)[-_MOST_INSTANTS:]
    lanes = sorted({_lane(instant) for instant in shown})
    spans = [_span(instant, now_ms=now_ms, zone=zone) for instant in shown]
    begin = min((start for start, _ in spans), default=now_ms)
    end = max([now_ms if any(i.is_pending for i in shown) else 0, *(finish for _, finish in spans)], default=now_ms)
    places = _places([moment for each in spans for moment in each])
    bars = tuple(
        _bar(instant, each, lane=lanes.index(_lane(instant)), places=places)
        for instant, each in zip(shown, spans, strict=True)
    )
    return TimelinePicture(
        width=_WIDTH,
        height=max(1, len(lanes)) * _LANE_HEIGHT,
        label_width=_LABEL_WIDTH,
        lane_height=_LANE_HEIGHT,
        lanes=tuple((name, number * _LANE_HEIGHT) for number, name in enumerate(lanes)),
        bars=bars,
        begin=_shown(begin),
        end=_shown(end),
        hidden=len(instants) - len(shown),
    )


def draw_amplification(instants: Sequence[Instant], *, now_ms: int, zone: str) -> Plot:
    """How many files a reader opened for one, at most, after each commit that is still on the timeline.

    A delta commit adds a log. A compaction takes away those that were complete when it was requested.
    """
    completed = sorted((i for i in instants if i.completed_at is not None), key=lambda i: str(i.completed_at))
    logs: list[str] = []
    steps: list[tuple[int, float]] = []
    for instant in completed:
        assert instant.completed_at is not None
        if instant.action is Action.DELTA_COMMIT:
            logs.append(instant.completed_at.value)
        elif instant.action is Action.COMMIT:
            logs = [each for each in logs if each > instant.requested_at.value]
        else:
            continue
        steps.append((parse_time(instant.completed_at.value, zone=zone), 1.0 + len(logs)))
    return draw_steps(steps[-_MOST_INSTANTS:], end_ms=now_ms, style="reads", what="files for one")


def size_classes(slices: Iterable[FileSlice]) -> tuple[SizeClass, ...]:
    """Base files by size, the small ones first."""
    found = {name: [0, 0] for name in [*(name for _, name in _CLASSES), _LARGEST]}
    for each in slices:
        if each.base is not None:
            name = next((name for most, name in _CLASSES if each.base.size < most), _LARGEST)
            found[name][0] += 1
            found[name][1] += each.base.size
    return tuple(SizeClass(name, files, size) for name, (files, size) in found.items())


def _lane(instant: Instant) -> str:
    return instant.action.completed_as.value


def _span(instant: Instant, *, now_ms: int, zone: str) -> tuple[int, int]:
    start = parse_time(instant.requested_at.value, zone=zone)
    finish = parse_time(instant.completed_at.value, zone=zone) if instant.completed_at is not None else now_ms
    return start, max(start, finish)


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
        y=lane * _LANE_HEIGHT + 5,
        width=round(max(_LEAST_BAR, places[finish] - places[start]), 1),
        height=_LANE_HEIGHT - 10,
        state=instant.state.value,
        text=f"{instant.action.value} {instant.state.value}: requested {_shown(start)}{completed}",
    )


def _shown(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
