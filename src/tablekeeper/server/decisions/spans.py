"""How spans of time are told to people. Pure."""

from __future__ import annotations

__all__ = ["span_text"]

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def span_text(seconds: float) -> str:
    """How long, with two units at most: `45 s`, `12 min`, `3 h 20 min`, `5 d 2 h`."""
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
