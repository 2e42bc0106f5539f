"""Text of tables for a terminal: control characters are shown, never obeyed.

Names and cells come from the writers of the table. An escape sequence in one of them could recolour the screen, move
the cursor or hide a line."""

from __future__ import annotations

import unicodedata

__all__ = ["escaped", "escaped_lines"]

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: str) -> str:
    """`text` on one line, with control and direction characters, and what is no character, as escapes."""
    return text if text.isprintable() else "".join(_shown(each) for each in text)


def escaped_lines(text: str) -> str:
    """The same for text of several lines of our own, which stay lines."""
    return "\n".join(escaped(line) for line in text.split("\n"))


def _shown(character: str) -> str:
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    code = ord(character)
    return _SHORT.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )
