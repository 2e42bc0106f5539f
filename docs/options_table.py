"""Puts the table of options into the configuration page when the documentation is built.

The table comes from the registry that the code itself checks options against, so the page cannot fall behind.
"""

from __future__ import annotations

from typing import Any

from tablekeeper.config.options import OPTIONS

__all__ = ["on_page_markdown"]

_PLACE = "<!-- options -->"


def _row(name: str) -> str:
    option = OPTIONS[name]
    default = "" if option.default is None else f"`{option.default}`"
    return f"| `{name}` | {option.kind.__name__} | {default} | {option.doc.replace('|', '&#124;')} |"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if _PLACE not in markdown:
        return markdown
    table = ["| option | type | default | what it does |", "|---|---|---|---|", *map(_row, sorted(OPTIONS))]
    return markdown.replace(_PLACE, "\n".join(table))
