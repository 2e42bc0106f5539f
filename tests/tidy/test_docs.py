"""The documentation knows every public name and every page of it is reachable."""

from __future__ import annotations

import re

from docs.options_table import with_options
from tablekeeper.config.options import OPTIONS
from tests.tidy.rules import exported_names
from tests.tidy.sources import PACKAGE, ROOT, Source

DOCS = ROOT / "docs"


def undocumented(names: list[str], text: str) -> list[str]:
    """Names that never appear as code, alone or after `tk.` or `tablekeeper.`."""
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))
    return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)]


def test_every_public_name_is_documented() -> None:
    package = Source(PACKAGE + "__init__.py", (ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md")))
    assert undocumented(exported_names(package), text) == []


def test_a_name_that_is_only_mentioned_in_prose_counts_as_undocumented() -> None:
    assert undocumented(["Table", "open"], "A Table is `tk.open`ed.") == ["Table"]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages == {page for page in pages if f": {page}\n" in navigation}
    assert pages


def test_every_word_of_the_glossary_is_found_in_its_module() -> None:
    rows = re.findall(r"^\| ([^|]+) \|[^|]+\| `([^`]+)` \|$", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) > 15
    assert [(word, module) for word, module in rows if not (ROOT / PACKAGE / module).is_file()] == []


def test_the_configuration_page_lists_the_options_as_they_are() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert with_options(page) == page, "run: python docs/options_table.py"
    assert all(f"| `{name}` |" in page for name in OPTIONS)
