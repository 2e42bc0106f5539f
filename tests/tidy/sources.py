"""The files that the tidy rules look at: Python sources as syntax trees, and every tracked text file."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/tablekeeper/"
_SKIPPED = {"__pycache__", "build", "dist", "site"}


@dataclass(frozen=True)
class Source:
    """One Python file: `path` is relative to the repository, with `/`."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @property
    def in_package(self) -> bool:
        return self.path.startswith(PACKAGE)

    @property
    def in_tests(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def module(self) -> str:
        """The path below the package without `.py`: `timeline/transition`; the whole path outside of it."""
        return self.path.removeprefix(PACKAGE).removesuffix(".py")


@dataclass(frozen=True, order=True)
class Violation:
    """One place that breaks a rule."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def load_sources() -> list[Source]:
    """Every Python file of the package, the tests and the benchmark, committed or not."""
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for folder in ("src", "tests", "bench")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not _SKIPPED & set(path.parts)
    ]


def load_tracked_texts() -> Iterator[tuple[str, str]]:
    """Path and text of every file under version control, or new and not ignored; binary files are left out."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, check=True, text=True)
    for name in sorted(filter(None, listing.stdout.split("\0"))):
        path = ROOT / name
        data = path.read_bytes() if path.is_file() else b"\0"
        if b"\0" not in data:
            yield name, data.decode("utf-8")
