"""Puts the tables of options into docs/configuration.md: run `python docs/options_table.py` after changing an option.

The tables come from the registry that the code itself checks options against; a tidy test sees a page that fell behind.
"""

from __future__ import annotations

import re
from pathlib import Path

from tablekeeper.config.java_keys import CLAIMS, IDLE, IDLE_FAMILIES, REFUSED, RENAMED
from tablekeeper.config.options import OPTIONS

__all__ = ["with_options"]

PAGE = Path(__file__).resolve().parent / "configuration.md"
_PLACE = re.compile(r"(<!-- options -->\n).*(<!-- end of options -->)", flags=re.DOTALL)

_JAVA = re.compile(r"(<!-- java -->\n).*(<!-- end of java -->)", flags=re.DOTALL)


def _row(name: str) -> str:
    option = OPTIONS[name]
    default = "" if option.default_text is None else f"`{option.default_text}`"
    return f"| `{name}` | {option.kind.__name__} | {default} | {option.doc.replace('|', '&#124;')} |"


def _java_rows() -> list[str]:
    rows = ["| setting of Java | what happens to it |", "|---|---|"]
    rows += [f"| `{name}` | compared with the table: {claim.value} |" for name, claim in CLAIMS.items()]
    rows += [f"| `{name}` | counts as `{option}` |" for name, option in RENAMED.items()]
    for name, refusal in REFUSED.items():
        harmless = ", ".join(f"`{value}`" for value in refusal.harmless)
        rows.append(f"| `{name}` | refused{f', but for {harmless}' if harmless else ''}. {refusal.instead} |")
    rows += [f"| `{family}*` | without meaning: {about} |" for family, about in IDLE_FAMILIES.items()]
    rows += [f"| {', '.join(f'`{name}`' for name in names)} | without meaning: {why} |" for why, names in IDLE.items()]
    return rows


def with_options(page: str) -> str:
    """The page with the tables as they are now between their marks."""
    options = ["| option | type | default | what it does |", "|---|---|---|---|", *map(_row, sorted(OPTIONS))]
    return _between(_JAVA, _between(_PLACE, page, options), _java_rows())


def _between(place: re.Pattern[str], page: str, rows: list[str]) -> str:
    text = "\n".join(rows)
    return place.sub(lambda found: f"{found.group(1)}\n{text}\n\n{found.group(2)}", page)


if __name__ == "__main__":
    PAGE.write_text(with_options(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
