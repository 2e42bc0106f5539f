"""Date patterns in the letters that Hudi's timestamp-based key generator takes (`yyyy/MM/dd HH`).

Printing and reading work on milliseconds since the epoch. Letters whose text depends on the
machine's language (month and day names, AM/PM, zone names) are refused: two writers with
different settings would put the same row into different partitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["DatePattern", "ParsedTimes", "compile_pattern", "default_text", "parse_times", "zone_name"]

_EPOCH = datetime(1970, 1, 1)
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_GRANULARITY_MS = {
    **dict.fromkeys("yYxMwdDe", _DAY_MS),
    **dict.fromkeys("HhkK", _HOUR_MS),
    "m": 60_000,
    "s": 1000,
    "S": 1,
}
_READABLE = {
    "y": "year",
    "Y": "year",
    "M": "month",
    "d": "day",
    "H": "hour",
    "m": "minute",
    "s": "second",
    "S": "fraction",
    "Z": "zone",
}
_GMT_OFFSET = re.compile(r"^(?:GMT|UTC)?([+-])(\d{1,2})(?::?(\d{2}))?$")


@dataclass(frozen=True, slots=True)
class _Token:
    """A run of one pattern letter, or literal text when `letter` is empty."""

    letter: str
    width: int
    literal: str = ""


@dataclass(frozen=True, slots=True)
class DatePattern:
    """A pattern taken apart. `granularity_ms` is the finest step that changes the printed text."""

    text: str
    tokens: tuple[_Token, ...]

    @property
    def granularity_ms(self) -> int:
        """Times that agree when rounded down to this many milliseconds print the same."""
        return min((_GRANULARITY_MS.get(token.letter, 1) for token in self.tokens if token.letter), default=_DAY_MS)

    def require_printable(self) -> None:
        """Raise UnsupportedFeatureError if the pattern prints something that rows do not carry."""
        if any(token.letter == "Z" for token in self.tokens):
            raise UnsupportedFeatureError(f"date pattern {self.text!r}: a zone in the output is not supported.")

    def require_readable(self) -> None:
        """Raise UnsupportedFeatureError if the pattern has a field that cannot be read back."""
        _reading_regex(self)

    def print_local(self, local_ms: int, *, offset: str = "") -> str:
        """The text of a local time given as milliseconds on its own clock; `offset` is what Z prints."""
        try:
            moment = _EPOCH + timedelta(milliseconds=local_ms)
        except OverflowError:
            raise InvalidRequestError(f"the time {local_ms} ms is outside the years 1 to 9999.") from None
        shown = {"": "", "Z": offset}
        return "".join(
            token.literal + (shown[token.letter] if token.letter in shown else _print_field(token, moment))
            for token in self.tokens
        )


@dataclass(frozen=True, slots=True)
class ParsedTimes:
    """Times read from text: the instant, and the same moment on the clock of the text's own zone. Null where unread."""

    utc_ms: pa.Array
    local_ms: pa.Array


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> DatePattern:
    """Take a pattern apart; raises UnsupportedFeatureError for a letter that has no fixed meaning here."""
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char == "'":
            end = position + 1
            literal = ""
            while end < len(text) and (text[end] != "'" or text[end : end + 2] == "''"):
                step = 2 if text[end] == "'" else 1
                literal += text[end]
                end += step
            if end >= len(text):
                raise InvalidRequestError(f"date pattern {text!r}: the quote at position {position + 1} is not closed.")
            tokens.append(_Token("", 0, literal or "'"))
            position = end + 1
        elif char.isascii() and char.isalpha():
            width = len(text) - position - len(text[position:].lstrip(char))
            if char not in _GRANULARITY_MS and char != "Z":
                raise UnsupportedFeatureError(
                    f"date pattern {text!r}: the letter {char!r} is not supported; use y M d H m s S D w x e."
                )
            if char == "M" and width > 2:
                raise UnsupportedFeatureError(
                    f"date pattern {text!r}: month names depend on the machine's language; use MM."
                )
            tokens.append(_Token(char, width))
            position += width
        else:
            tokens.append(_Token("", 0, char))
            position += 1
    return DatePattern(text, tuple(tokens))


def parse_times(texts: pa.Array, patterns: tuple[DatePattern, ...], *, zone: str | None) -> ParsedTimes:
    """Read each text with the first pattern that fits it whole.

    `zone` is where texts without an offset are from, UTC if None. With a zone given the local
    clock is that zone's; without, it is the offset in the text.
    """
    empty = pa.nulls(len(texts), pa.int64())
    utc_ms, local_ms = empty, empty
    for pattern in patterns:
        open_rows = pc.is_null(utc_ms)
        if not pc.any(open_rows).as_py():
            break
        times = _read_with(texts, pattern, zone)
        utc_ms, local_ms = pc.coalesce(utc_ms, times.utc_ms), pc.coalesce(local_ms, times.local_ms)
    return ParsedTimes(utc_ms, local_ms)


def zone_name(zone: str) -> str:
    """A time zone as Java names it (`GMT+8:00`, `Asia/Tokyo`) in the form that Arrow takes."""
    name = zone.strip()
    fixed = _GMT_OFFSET.match(name)
    if fixed:
        return f"{fixed[1]}{int(fixed[2]):02d}:{fixed[3] or '00'}"
    if name in ("GMT", "UTC", "Z"):
        return "UTC"
    try:
        pc.local_timestamp(pa.scalar(0, pa.timestamp("ms", name)))
    except (pa.ArrowInvalid, KeyError, ValueError):
        raise InvalidRequestError(
            f"unknown time zone {zone!r}: use UTC, GMT+8:00 or a name such as Asia/Tokyo."
        ) from None
    return name


def default_text(pattern: DatePattern, *, zone: str) -> str:
    """What a null counts as in Hudi: the first millisecond after the epoch, printed in `zone`."""
    local_ms = pc.local_timestamp(pa.scalar(1, pa.timestamp("ms", zone_name(zone)))).cast(pa.int64()).as_py()
    minutes = local_ms // 60_000
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"
    return pattern.print_local(local_ms, offset=offset)


def _print_field(token: _Token, moment: datetime) -> str:
    letter, width = token.letter, token.width
    if letter in "yYx":
        year = moment.isocalendar().year if letter == "x" else moment.year
        return f"{year % 100:02d}" if width == 2 else str(year).zfill(width)
    if letter == "S":
        return f"{moment.microsecond // 1000:03d}".ljust(width, "0")[:width]
    number = {
        "M": moment.month,
        "d": moment.day,
        "D": moment.timetuple().tm_yday,
        "w": moment.isocalendar().week,
        "e": moment.isoweekday(),
        "H": moment.hour,
        "k": moment.hour or 24,
        "K": moment.hour % 12,
        "h": moment.hour % 12 or 12,
        "m": moment.minute,
        "s": moment.second,
    }[letter]
    return str(number).zfill(width)


@lru_cache(maxsize=256)
def _reading_regex(pattern: DatePattern) -> tuple[str, tuple[str, ...]]:
    """An RE2 expression with one named group a field, and the names of the groups."""
    pieces: list[str] = []
    names: list[str] = []
    tokens = pattern.tokens
    for position, token in enumerate(tokens):
        if not token.letter:
            pieces.append(re.escape(token.literal))
            continue
        name = _READABLE.get(token.letter)
        if name is None or (name == "year" and token.width == 2) or name in names:
            raise UnsupportedFeatureError(
                f"date pattern {pattern.text!r}: {token.letter * token.width} cannot be read from text."
            )
        names.append(name)
        # Digits that touch another number have a fixed count, or nobody could tell them apart.
        following = tokens[position + 1].letter if position + 1 < len(tokens) else ""
        touches = following not in ("", "Z")
        digits = {"year": "{1,9}", "fraction": f"{{1,{token.width}}}"}.get(name, "{1,2}")
        count = f"{{{token.width}}}" if touches else digits
        pieces.append(f"(?P<{name}>{'Z|[+-][0-9]{2}:?[0-9]{2}' if name == 'zone' else f'[0-9]{count}'})")
    return f"^{''.join(pieces)}$", tuple(names)


def _read_with(texts: pa.Array, pattern: DatePattern, zone: str | None) -> ParsedTimes:
    regex, names = _reading_regex(pattern)
    found = pc.extract_regex(texts, regex)
    matched = np.asarray(found.is_valid())
    fields: dict[str, Any] = {name: pc.struct_field(found, name) for name in names}
    numbers = {
        name: np.asarray(pc.fill_null(values, "0").cast(pa.int64()))
        for name, values in fields.items()
        if name not in ("zone", "fraction")
    }
    local_ms, valid = _civil_to_ms(numbers, len(texts))
    if "fraction" in fields:
        padded = pc.utf8_slice_codeunits(
            pc.binary_join_element_wise(pc.fill_null(fields["fraction"], ""), "000", ""), 0, 3
        )
        local_ms = local_ms + np.asarray(padded.cast(pa.int64()))
    valid &= matched
    mask = pa.array(valid)
    local = pc.if_else(mask, pa.array(local_ms), None)
    if "zone" in fields:
        utc = pc.subtract(local, _offset_ms(pc.fill_null(fields["zone"], "Z")))
    else:
        utc = _to_utc(local, zone)
    if zone is not None:
        local = pc.local_timestamp(utc.cast(pa.timestamp("ms", zone_name(zone)))).cast(pa.int64())
    return ParsedTimes(utc, local)


def _civil_to_ms(numbers: dict[str, Any], count: int) -> tuple[Any, Any]:
    """Milliseconds of local dates and times, and which of them exist in the calendar."""
    default_year = 2000 if "month" in numbers or "day" in numbers else 1970
    year = numbers.get("year", np.full(count, default_year))
    month, day = numbers.get("month", np.ones(count, np.int64)), numbers.get("day", np.ones(count, np.int64))
    hour, minute, second = (numbers.get(name, np.zeros(count, np.int64)) for name in ("hour", "minute", "second"))
    valid = (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
    months = (year - 1970) * 12 + np.where(valid, month, 1) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    after = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    valid &= day <= after - first
    days = first + day - 1
    return days * _DAY_MS + hour * _HOUR_MS + minute * 60_000 + second * 1000, valid


def _offset_ms(zones: pa.Array) -> pa.Array:
    parts = pc.extract_regex(zones, r"^(?P<sign>[+-])(?P<hours>[0-9]{2}):?(?P<minutes>[0-9]{2})$")
    hours = pc.multiply(pc.struct_field(parts, "hours").cast(pa.int64()), _HOUR_MS)
    size = pc.add(hours, pc.multiply(pc.struct_field(parts, "minutes").cast(pa.int64()), 60_000))
    signed = pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), pc.negate(size), size)
    return pc.fill_null(signed, 0)


def _to_utc(local: pa.Array, zone: str | None) -> pa.Array:
    name = zone_name(zone) if zone is not None else "UTC"
    clock = local.cast(pa.timestamp("ms"))
    try:
        return pc.assume_timezone(clock, name, ambiguous="earliest", nonexistent="raise").cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidRequestError(f"a local time does not exist in zone {zone}: {error}. Correct the value.") from None
