"""Plots as shapes: lines and bars over time, and parts of a whole. Pure; the templates write the SVG tags.

Each plot has a sentence that says what it shows, for those who do not see it, and a text for every column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tablekeeper.server.dashboard.words import span

__all__ = ["Column", "Part", "Plot", "Segment", "draw_bars", "draw_lines", "draw_parts", "draw_steps"]

WIDTH, HEIGHT = 420, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 22
_NICE = (1, 2, 5, 10)
_SHARE_WIDTH = 1000
# Below this, ticks of the same minute would have the same name.
_SHORT_MS = 10 * 60_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A line (`path` of SVG) or the area below it, and the class that colours it."""

    style: str
    path: str
    is_area: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A bar, or where it has no height the place that shows its text."""

    x: float
    y: float
    width: float
    height: float
    style: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """Shapes in a box of `width` by `height`; ticks are (position, text)."""

    told: str
    lines: tuple[Segment, ...] = ()
    bars: tuple[Column, ...] = ()
    hovers: tuple[Column, ...] = ()
    ticks_y: tuple[tuple[float, str], ...] = ()
    ticks_x: tuple[tuple[float, str], ...] = ()
    width: int = WIDTH
    height: int = HEIGHT
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a whole, from `x` on, in thousandths."""

    name: str
    style: str
    count: int
    x: float
    width: float


def draw_lines(
    points: Sequence[tuple[int, Mapping[str, float]]],
    *,
    begin_ms: int,
    end_ms: int,
    names: Mapping[str, str],
    is_span: bool = False,
) -> Plot:
    """Lines over time; `names` says what each style stands for. With `is_span` values are seconds."""
    most = max((values[style] for _, values in points for style in names), default=0.0)
    top, ticks = _scale(most, is_span=is_span)
    placed = [(_x(at_ms, begin_ms, end_ms), at_ms, values) for at_ms, values in points if at_ms >= begin_ms]
    lines = []
    for position, style in enumerate(names):
        drawn = [(x, _y(values[style], top)) for x, _, values in placed]
        if not drawn:
            continue
        if position == 0:
            lines.append(Segment(style, _area(drawn), is_area=True))
        lines.append(Segment(style, _path(drawn)))
    shown = span if is_span else _whole
    texts = [
        (x, f"{_clock(at_ms)} UTC: " + ", ".join(f"{name} {shown(values[style])}" for style, name in names.items()))
        for x, at_ms, values in placed
    ]
    last = texts[-1][1] if texts else "no sample yet"
    highest = f"at most {shown(most)}; " if texts else ""
    return Plot(
        told=f"{highest}{last}",
        lines=tuple(lines),
        hovers=_hovers(texts),
        ticks_y=tuple((_y(value, top), text) for value, text in ticks),
        ticks_x=_time_ticks(begin_ms, end_ms),
        # One point is no line.
        is_empty=len(placed) < 2,
    )


def draw_bars(
    buckets: Sequence[tuple[int, Mapping[str, int]]],
    *,
    begin_ms: int,
    end_ms: int,
    bucket_ms: int,
    names: Mapping[str, str],
) -> Plot:
    """Counts a bucket of time, one style on the other."""
    most = max((sum(counts.values()) for _, counts in buckets), default=0)
    top, ticks = _scale(most)
    width = max(1.5, (WIDTH - _LEFT - _RIGHT) * bucket_ms / max(1, end_ms - begin_ms) - 1)
    bars, hovers, total = [], [], dict.fromkeys(names, 0)
    for start_ms, counts in buckets:
        x, below = _x(max(start_ms, begin_ms), begin_ms, end_ms), 0
        for style in names:
            count = counts.get(style, 0)
            total[style] += count
            if count:
                upper = _y(below + count, top)
                bars.append(Column(x, upper, round(width, 1), round(_y(below, top) - upper, 1), style))
                below += count
        told = ", ".join(f"{counts.get(style, 0)} {name}" for style, name in names.items())
        hovers.append((x + width / 2, f"{_clock(start_ms)} UTC: {told}"))
    return Plot(
        told="in all " + ", ".join(f"{total[style]:,} {name}" for style, name in names.items()),
        bars=tuple(bars),
        hovers=_hovers(hovers),
        ticks_y=tuple((_y(value, top), text) for value, text in ticks),
        ticks_x=_time_ticks(begin_ms, end_ms),
        is_empty=not any(total.values()),
    )


def draw_steps(steps: Sequence[tuple[int, float]], *, end_ms: int, style: str, what: str) -> Plot:
    """A value that holds until the next step, to the right edge."""
    if not steps:
        return Plot(told="nothing yet", is_empty=True)
    begin_ms = steps[0][0]
    end_ms = max(end_ms, begin_ms + 1)
    top, ticks = _scale(max(value for _, value in steps))
    points: list[tuple[float, float]] = []
    for at_ms, value in steps:
        x = _x(at_ms, begin_ms, end_ms)
        if points:
            points.append((x, points[-1][1]))
        points.append((x, _y(value, top)))
    points.append((_x(end_ms, begin_ms, end_ms), points[-1][1]))
    texts = [(_x(at_ms, begin_ms, end_ms), f"{_clock(at_ms)} UTC: {value:g} {what}") for at_ms, value in steps]
    highest = max(value for _, value in steps)
    return Plot(
        told=f"now {steps[-1][1]:g} {what}, at most {highest:g}",
        lines=(Segment(style, _area(points), is_area=True), Segment(style, _path(points))),
        hovers=_hovers(texts),
        ticks_y=tuple((_y(value, top), text) for value, text in ticks),
        ticks_x=_time_ticks(begin_ms, end_ms),
    )


def draw_parts(counts: Sequence[tuple[str, str, int]]) -> tuple[Part, ...]:
    """Parts of a whole by name, style and count; what is there at all is wide enough to be seen."""
    total = sum(count for _, _, count in counts)
    if not total:
        return ()
    widths = [max(6.0, _SHARE_WIDTH * count / total) if count else 0.0 for _, _, count in counts]
    shrink = _SHARE_WIDTH / sum(widths)
    parts, x = [], 0.0
    for (name, style, count), width in zip(counts, widths, strict=True):
        parts.append(Part(name, style, count, round(x, 1), round(width * shrink, 1)))
        x += width * shrink
    return tuple(parts)


def _x(at_ms: int, begin_ms: int, end_ms: int) -> float:
    share = (at_ms - begin_ms) / max(1, end_ms - begin_ms)
    return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, share)), 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top, 1)


def _scale(most: float, *, is_span: bool = False) -> tuple[float, list[tuple[float, str]]]:
    """A round end of the axis, and its ticks."""
    if is_span:
        ends = (10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 12 * 3600)
        days = 86_400.0
        while days < most:
            days *= 2
        top = float(next((end for end in ends if end >= most), days))
        return top, [(0.0, "0"), (top / 2, span(top / 2)), (top, span(top))]
    step = 1.0
    while step * _NICE[-1] < most / 4:
        step *= 10
    step *= next(nice for nice in _NICE if step * nice >= most / 4 or nice == _NICE[-1])
    top = step * max(2.0, -(-most // step))
    count = round(top / step)
    return top, [(step * number, _short(step * number)) for number in range(count + 1)]


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _time_ticks(begin_ms: int, end_ms: int) -> tuple[tuple[float, str], ...]:
    is_long = end_ms - begin_ms > 36 * 3600 * 1000
    moments = [begin_ms + (end_ms - begin_ms) * part // 3 for part in range(4)]
    is_short = end_ms - begin_ms < _SHORT_MS
    told = [(at, _day(at) if is_long else _clock(at, with_seconds=is_short)) for at in moments]
    # Of a time so short that moments have the same name, the first.
    shown = [each for number, each in enumerate(told) if not number or each[1] != told[number - 1][1]]
    return tuple((_x(at, begin_ms, end_ms), text) for at, text in shown)


def _hovers(texts: Sequence[tuple[float, str]]) -> tuple[Column, ...]:
    """Columns as wide as reaches half-way to the next."""
    made = []
    for number, (x, text) in enumerate(texts):
        left = (texts[number - 1][0] + x) / 2 if number else _LEFT
        right = (texts[number + 1][0] + x) / 2 if number + 1 < len(texts) else WIDTH - _RIGHT
        made.append(
            Column(round(left, 1), _TOP, round(max(0.5, right - left), 1), HEIGHT - _TOP - _BOTTOM, "hover", text)
        )
    return tuple(made)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _area(points: Sequence[tuple[float, float]]) -> str:
    ground = HEIGHT - _BOTTOM
    return (
        f"M{points[0][0]:g},{ground}L" + "L".join(f"{x:g},{y:g}" for x, y in points) + f"L{points[-1][0]:g},{ground}Z"
    )


def _clock(moment_ms: int, *, with_seconds: bool = False) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%H:%M:%S" if with_seconds else "%H:%M")


def _day(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%d %b")
