"""How values are told to people: moments, spans, sizes and counts. Pure; the filters of the templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from tablekeeper.server.decisions.sizes import size_text

__all__ = ["about_ago", "filters", "moment", "span", "word"]

_NONE = "\u2013"
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
_WORDS = {
    "nothing_to_do": "nothing to do",
    "timed_out": "timed out",
    "log_compaction": "log compaction",
    "instance_gone": "instance gone",
}


def moment(moment_ms: int | None) -> str:
    """A moment in UTC, to the second."""
    if not moment_ms:
        return _NONE
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float | None) -> str:
    """How long, with two units at most: `45 s`, `12 min`, `3 h 20 min`, `5 d 2 h`."""
    if seconds is None:
        return _NONE
    whole = max(0, round(seconds))
    for position, (size, unit) in enumerate(_UNITS):
        if whole < size:
            continue
        count, rest = divmod(whole, size)
        smaller = _UNITS[position + 1] if position + 1 < len(_UNITS) else None
        if smaller is None or rest < smaller[0]:
            return f"{count} {unit}"
        return f"{count} {unit} {rest // smaller[0]} {smaller[1]}"
    return f"{whole} s"


def about_ago(moment_ms: int | None, *, now_ms: int) -> Markup | str:
    """`3 min ago` or `in 3 min`, with the moment itself as a tooltip, and for programs."""
    if not moment_ms:
        return _NONE
    between_s = (now_ms - moment_ms) / 1000
    text = f"{span(between_s)} ago" if between_s >= 0 else f"in {span(-between_s)}"
    exact = moment(moment_ms)
    return Markup('<time datetime="{}Z" title="{} UTC">{}</time>').format(exact.replace(" ", "T"), exact, text)


def size(count: float | None) -> str:
    """Bytes in powers of 1024."""
    return _NONE if count is None else size_text(count)


def number(count: int | None) -> str:
    """With separators between thousands."""
    return _NONE if count is None else f"{count:,}"


def times(factor: float | None) -> str:
    """`4x`: how many files a reader opens for one."""
    return _NONE if factor is None else f"{factor:.3g}x"


def word(name: str) -> str:
    """A name of the program as people read it."""
    return _WORDS.get(name, name.replace("_", " "))


def filters() -> dict[str, Callable[..., Any]]:
    """By the names that templates use."""
    return {"moment": moment, "span": span, "size": size, "number": number, "times": times, "word": word}
