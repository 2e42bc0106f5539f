"""How values are told to people: moments, spans, sizes and counts. Pure; the filters of the templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from tablekeeper.server.decisions.sizes import size_text
from tablekeeper.server.decisions.spans import span_text

__all__ = ["REMEDIES", "about_ago", "filters", "moment", "span", "word"]

_NONE = "\u2013"
REMEDIES = {
    "failed": "Read the reason and the output of the operation, remove the cause, then try again or cancel it.",
    "quarantined": "Run `tablekeeper doctor` on the table, then release the table or try the operation again.",
    "late": "Give the service more slots or instances, the table a higher priority, or a target that fits.",
    "stuck": "Read the output of the operation, and cancel it if nothing moves.",
    "backlog": "Give the service more slots or instances, or look for a limit on the queue.",
    "instance_gone": "Start the instance again. Others take over its work when its leases expire.",
}
"""What to do about an open alarm, by its rule; in the words of the operator's guide, but shorter."""
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
    """How long, with two units at most."""
    return _NONE if seconds is None else span_text(seconds)


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
