"""Puts the table of options into docs/configuration.md: run `python docs/options_table.py` after changing an option.

The table comes from the registry that the code itself checks options against; a tidy test sees a page that fell behind.
"""

from __future__ import annotations

import re
from pathlib import Path

from tablekeeper.config.options import OPTIONS

__all__ = ["with_options"]

PAGE = Path(__file__).resolve().parent / "configuration.md"
_PLACE = re.compile(r"(<!-- options -->\n).*(<!-- end of options -->)", flags=re.DOTALL)


def _row(name: str) -> str:
    option = OPTIONS[name]
    default = "" if option.default is None else f"`{option.default}`"
    return f"| `{name}` | {option.kind.__name__} | {default} | {option.doc.replace('|', '&#124;')} |"


def with_options(page: str) -> str:
    """The page with the table as it is now between its two marks."""
    table = ["| option | type | default | what it does |", "|---|---|---|---|", *map(_row, sorted(OPTIONS))]
    text = "\n".join(table)
    return _PLACE.sub(lambda found: f"{found.group(1)}\n{text}\n\n{found.group(2)}", page)


if __name__ == "__main__":
    PAGE.write_text(with_options(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
