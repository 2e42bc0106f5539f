"""Durations and sizes as people write them: `30s`, `5m`, `256MB`."""

from __future__ import annotations

import math
import re

from tablekeeper.errors import InvalidRequestError

__all__ = ["parse_duration_s", "parse_size_bytes"]

_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def parse_duration_s(value: str | float) -> float:
    """Seconds: a number, or text with a unit (ms, s, m, h, d)."""
    return _parse(value, _SECONDS, example="'30s', '5m' or a number of seconds")


def parse_size_bytes(value: str | int) -> int:
    """Bytes: a number, or text with a unit (KB, MB, GB, TB; powers of 1024, also written KiB …)."""
    return int(_parse(value, _BYTES, example="'256MB', '1GB' or a number of bytes"))


def _parse(value: str | float, units: dict[str, float] | dict[str, int], *, example: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number, factor = _float(value), 1.0
    else:
        found = _NUMBER_AND_UNIT.fullmatch(str(value))
        unit = found.group(2).lower().replace("ib", "b") if found is not None else "?"
        if found is None or unit not in units:
            raise InvalidRequestError(f"{value!r} is not understood: give {example}.")
        number, factor = _float(found.group(1)), units[unit]
    if number < 0 or not math.isfinite(number * factor):
        raise InvalidRequestError(f"{value!r} is negative or has no end: give {example}.")
    return number * factor


def _float(value: str | float) -> float:
    try:
        return float(value)
    except OverflowError:
        # An integer that no float holds; like the infinities it is refused.
        return math.inf
