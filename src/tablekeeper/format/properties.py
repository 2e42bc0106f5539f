"""Java `.properties` files and the checksum that guards the table's own one.

Text is ISO-8859-1 with `\\uXXXX` escapes for UTF-16 units, as `java.util.Properties` loads and stores it.
Encoding is deterministic: keys are sorted and no date comment is written.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping

from tablekeeper.errors import CorruptTableError

__all__ = ["decode_properties", "encode_properties", "table_checksum", "verify_checksum"]

_BLANK = " \t\f"
_LINE_END = re.compile("\r\n|\r|\n")
_TRAILING_BACKSLASHES = re.compile(r"\\*\Z")
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|\Z)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES = {value: key for key, value in _ESCAPED.items()}


def decode_properties(data: bytes, *, file: str) -> dict[str, str]:
    """All keys with their values; of a key that occurs twice the last value counts."""
    properties: dict[str, str] = {}
    for line in _logical_lines(data.decode("iso-8859-1")):
        key = _match(_KEY, line, 0)
        separator = _match(_SEPARATOR, line, len(key))
        value = line[len(key) + len(separator) :]
        properties[_unescape(key, file=file)] = _unescape(value, file=file)
    return properties


def encode_properties(properties: Mapping[str, str], *, comment: str = "") -> bytes:
    """The file as Java stores it, with sorted keys, after one comment line for each line of `comment`."""
    lines = [f"#{_escape(line, special='')}" for line in _LINE_END.split(comment)] if comment else []
    for key in sorted(properties):
        lines.append(f"{_escape(key, special=' =:#!')}={_escape_value(properties[key])}")
    return "".join(line + "\n" for line in lines).encode("iso-8859-1")


def table_checksum(*, database: str, table: str) -> str:
    """The checksum that Java stores with a table's properties; `database` is empty if the table has none."""
    return str(zlib.crc32(f"{database}.{table}".encode()))


def verify_checksum(stored: str | None, *, database: str, table: str, file: str) -> None:
    """Raise if a checksum is stored and wrong. An absent one is accepted, as Java does."""
    expected = table_checksum(database=database, table=table)
    if stored is not None and stored.strip() != expected:
        raise CorruptTableError(file=file, reason=f"its checksum is {stored!r}, but its names give {expected}")


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blanks; a line that ends in an odd number of backslashes goes on in the next."""
    natural = iter(_LINE_END.split(text))
    for first in natural:
        line = first.lstrip(_BLANK)
        if not line or line[0] in "#!":
            continue
        parts = []
        while line.endswith("\\") and _continues(line):
            parts.append(line[:-1])
            line = next(natural, "").lstrip(_BLANK)
        parts.append(line)
        if logical := "".join(parts):
            yield logical


def _continues(line: str) -> bool:
    return len(_match(_TRAILING_BACKSLASHES, line, len(line.rstrip("\\")))) % 2 == 1


def _match(pattern: re.Pattern[str], text: str, start: int) -> str:
    found = pattern.match(text, start)
    return found.group() if found else ""


def _unescape(text: str, *, file: str) -> str:
    if "\\" not in text:
        return text

    def replace(found: re.Match[str]) -> str:
        escaped = found.group(1)
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise CorruptTableError(file=file, reason="a \\u escape is not followed by four hexadecimal digits")
        return _ESCAPED.get(escaped, escaped)

    units = _ESCAPE.sub(replace, text)
    try:
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise CorruptTableError(file=file, reason="a \\u escape is half of a character") from error


def _escape_value(value: str) -> str:
    # Only a leading blank would be lost; Java leaves the others as they are.
    prefix = "\\" if value.startswith(" ") else ""
    return prefix + _escape(value, special="=:#!")


def _escape(text: str, *, special: str) -> str:
    return "".join(_escape_character(character, special) for character in text)


def _escape_character(character: str, special: str) -> str:
    if character in _ESCAPES:
        return "\\" + _ESCAPES[character]
    if character == "\\" or character in special:
        return "\\" + character
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
