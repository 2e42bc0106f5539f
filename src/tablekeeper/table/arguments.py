"""Arguments of the public methods, checked before anything is done with them: names, conditions, durations, sizes.

A wrong one is an `InvalidRequestError` that names the argument. Flags are taken literally: the text "false" would
otherwise count as true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.predicate import Predicate
from tablekeeper.runtime import Runtime

__all__ = [
    "checked_condition",
    "checked_count",
    "checked_extra",
    "checked_flags",
    "checked_names",
    "checked_runtime",
    "checked_seconds",
    "checked_text",
    "parse_duration_s",
    "parse_size_bytes",
    "rows_reported",
]


def checked_flags(**flags: object) -> None:
    """Raise `InvalidRequestError` for a flag that is not True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidRequestError(f"{name}={value!r}: give True or False.")


def checked_text(name: str, value: object) -> str:
    """`value` if it is text that can be stored."""
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name}={value!r}: give text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name}={value!r} is not valid Unicode: {error.reason}.") from error
    return value


def checked_names(name: str, values: object) -> list[str]:
    """Names of columns, partitions or services, given as a list of texts."""
    if isinstance(values, str | bytes | Mapping | pa.Table | pa.Schema) or not isinstance(values, Iterable):
        hint = f"[{values!r}]" if isinstance(values, str) else "for example ['city']"
        raise InvalidRequestError(f"{name}={values!r}: takes a list of names, {hint}.")
    return [checked_text(name, value) for value in values]


def checked_condition(name: str, value: object) -> str | Predicate | None:
    """A SQL condition, or none."""
    if value is None or isinstance(value, Predicate):
        return value
    return checked_text(name, value)


def checked_count(name: str, value: object) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequestError(f"{name}={value!r}: give a whole number from 0 on.")
    return value


def checked_seconds(name: str, value: object) -> float:
    """A number of seconds that is not negative and has an end."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidRequestError(f"{name}={value!r}: give a number of seconds from 0 on.")
    return value


def checked_runtime(value: object) -> Runtime:
    """What gives time, identity and threads."""
    if not isinstance(value, Runtime):
        raise InvalidRequestError(f"runtime={value!r}: leave it out, or give a tablekeeper.runtime.Runtime.")
    return value


def checked_extra(value: object) -> dict[str, str]:
    """What a caller wants kept with a commit: texts by name."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"extra={value!r}: give texts by name, for example {{'job': 'nightly'}}.")
    return {checked_text("extra", name): checked_text(f"extra[{name!r}]", text) for name, text in value.items()}


@contextmanager
def rows_reported() -> Iterator[None]:
    """Errors of Arrow about the caller's rows, as ours: a value that is not of its type, text that is not UTF-8."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        text = str(error).split(". Detail:")[0]
        raise InvalidRequestError(f"the rows cannot be written: {text}. Correct them and write again.") from error


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
