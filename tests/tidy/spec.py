"""Reads the map from the clauses of the design documents to modules and tests, and the tests that exist.

`docs/spec_clauses.toml` lists what they ask for, one clause a row. `docs/spec_map.md` says for each
where it lives, whether it is done, and which tests hold it. The two must speak of the same clauses.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.sources import Source

FEATURES = ("many writers", "table services", "management service")
_ROW = re.compile(r"^\| *(?P<id>(?:guard|cancellable|rfc\d+)-[\w-]+) *\|(?P<rest>.*)\|\s*$")


@dataclass(frozen=True)
class Clause:
    """One row of the map. `state` is `done` or `planned: <feature>`; tests are `path::name`."""

    id: str
    text: str
    module: str
    state: str
    tests: tuple[str, ...]


def load_clause_list(path: Path) -> dict[str, str]:
    """Clause id -> what it asks for."""
    documents = tomllib.loads(path.read_text(encoding="utf-8"))["clause"]
    return {f"{document}-{name}": text for document, clauses in documents.items() for name, text in clauses.items()}


def decode_map(markdown: str) -> list[Clause]:
    """The rows of the map; a row with the wrong number of cells is an error."""
    rows = []
    for line in markdown.splitlines():
        if found := _ROW.match(line):
            cells = [cell.strip() for cell in found["rest"].split("|")]
            if len(cells) != 4:
                raise ValueError(f"{found['id']}: {len(cells)} cells beside the id, not 4")
            text, module, state, tests = cells
            rows.append(Clause(found["id"], text, module.strip("`"), state, tuple(re.findall(r"`([^`]+)`", tests))))
    return rows


def existing_tests(sources: Iterable[Source]) -> set[str]:
    """`path::test` and `path::Class::test` of every test function, read from the syntax trees."""

    def inside(prefix: str, body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{prefix}::{node.name}"
            elif isinstance(node, ast.ClassDef):
                yield from inside(f"{prefix}::{node.name}", node.body)

    return {name for source in sources if source.in_tests for name in inside(source.path, source.tree.body)}


def find_gaps(rows: Iterable[Clause], *, clauses: Mapping[str, str], tests: set[str], modules: set[str]) -> list[str]:
    """Everything that is wrong with the map, in words."""
    listed = list(rows)
    ids = [row.id for row in listed]
    gaps = [f"{name}: in the clause list, not in the map" for name in clauses if name not in ids]
    gaps += [f"{name}: in the map twice" for name in sorted({name for name in ids if ids.count(name) > 1})]
    for row in listed:
        if row.id not in clauses:
            gaps.append(f"{row.id}: not in the clause list")
        elif clauses[row.id] != row.text:
            gaps.append(f"{row.id}: the text differs from the clause list")
        gaps += [f"{row.id}: no test {test}" for test in row.tests if test not in tests]
        if row.state == "done":
            gaps += [] if row.tests else [f"{row.id}: done without a test"]
            gaps += [] if row.module in modules else [f"{row.id}: done in {row.module}, which does not exist"]
        elif row.state not in {f"planned: {feature}" for feature in FEATURES}:
            gaps.append(f"{row.id}: {row.state!r} is neither 'done' nor planned for one of {', '.join(FEATURES)}")
    return gaps
