"""A run as people read it: the history in a few lines, the trace call by call, and a drawing of who did what when."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tablekeeper.testing.history import History
from tablekeeper.testing.play import Outcome
from tablekeeper.testing.story import Event

__all__ = ["describe_history", "draw_timeline", "trace_lines"]

_LANE = 34
_LEFT = 190
_WIDTH = 1400
_TOP = 60
_COLORS = {"changes": "#1b6ca8", "looks": "#c3d4e2", "timeline": "#d1495b", "lock": "#edae49", "fault": "#7b2d8e"}


def describe_history(history: History) -> list[str]:
    """Table, actors with their jobs, and faults, a line each."""
    lines = [f"table     {history.shape}"]
    for actor in history.actors:
        jobs = ", then ".join(f"{job.kind} after {job.after_s:g} s" if job.after_s else job.kind for job in actor.jobs)
        oddities = [
            f"clock {actor.skew_s:+g} s" if actor.skew_s else "",
            "tasks take turns" if actor.parallel else "",
            "tasks are repeated" if actor.repeats_tasks else "",
            f"on {actor.host}" if actor.host else "",
        ]
        odd = "; ".join(filter(None, oddities))
        lines.append(f"actor     {actor.name}: {jobs}{f' ({odd})' if odd else ''}")
    return lines + [f"fault     {fault}" for fault in history.faults]


def trace_lines(outcome: Outcome) -> Iterator[str]:
    """Who did what, in which order, and what each saw."""
    last = ""
    for event in outcome.story.events:
        if event.fiber != last:
            yield ""
            last = event.fiber
        what = event.note if event.call is None else f"{event.call.kind} {event.call.path}"
        saw = "" if event.call is None or not event.note else f"  → {event.note}"
        yield f"{event.step:5d} {event.now_s:10.3f} s  {event.fiber:<24} {what}{saw}"


def draw_timeline(outcome: Outcome) -> str:
    """An SVG: a lane a process, a mark a call in the order of the steps, what changed the timeline and the faults."""
    events = [event for event in outcome.story.events if event.process != "caretaker"]
    processes = list(dict.fromkeys(event.process for event in events))
    last_step = max((event.step for event in events), default=1)
    scale = _WIDTH / max(1, last_step)
    height = _TOP + _LANE * len(processes) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 40}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape("; ".join(outcome.complaints[:1])[:200])}</text>',
    ]
    for number, process in enumerate(processes):
        y = _TOP + _LANE * number
        parts.append(f'<text x="10" y="{y + 12}">{escape(process)}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y + 8}" y2="{y + 8}" stroke="#eeeeee"/>')
    for event in events:
        parts += _marks(event, x=_LEFT + event.step * scale, y=_TOP + _LANE * processes.index(event.process))
    legend = "  ".join(_COLORS)
    parts.append(f'<text x="{_LEFT}" y="{height - 16}" fill="#555555">marks: {legend}; one mark a call, by step</text>')
    return "\n".join([*parts, "</svg>"])


def _marks(event: Event, *, x: float, y: float) -> Iterator[str]:
    title = (
        f"{event.step} {event.doing}: {event.call.kind if event.call else ''} {event.call.path if event.call else ''}"
    )
    kind = _kind(event)
    size = 16 if kind in ("timeline", "fault") else 9
    yield (
        f'<rect x="{x:.1f}" y="{y + 8 - size / 2}" width="2" height="{size}" fill="{_COLORS[kind]}">'
        f"<title>{escape(title)} {escape(event.note)}</title></rect>"
    )
    if event.call is None:
        yield f'<text x="{x:.1f}" y="{y - 4}" font-size="10" fill="#333333">{escape(event.note)}</text>'
    elif kind == "timeline":
        name = event.call.path.rpartition("/")[2]
        yield f'<text x="{x:.1f}" y="{y + 26}" font-size="8" fill="{_COLORS[kind]}">{escape(name[-28:])}</text>'


def _kind(event: Event) -> str:
    if "  ! " in event.note:
        return "fault"
    call = event.call
    if call is None or not call.changes:
        return "looks"
    if call.path.startswith(".hoodie/timeline/"):
        return "timeline"
    return "lock" if call.path.startswith(".hoodie/.locks/") else "changes"
