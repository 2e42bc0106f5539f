"""What is packed into the source distribution: the sources, whatever else lies in the checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

from tests.tidy.sources import ROOT

SOURCES = (
    "LICENSE",
    "Makefile",
    "README.md",
    "bench/run.py",
    "docs/index.md",
    "docs/spec_clauses.toml",
    "mkdocs.yml",
    "pyproject.toml",
    "requirements/dev.lock",
    "src/pyspark_tablekeeper/__init__.py",
    "src/tablekeeper/__init__.py",
    "src/tablekeeper/py.typed",
    "tests/conftest.py",
)
# What `make bench`, `make docs`, tests and environments leave in a checkout.
LEFT_BEHIND = (
    ".venv-interop/lib/pandas.py",
    "bench/data/cow/sf/part.parquet",
    "bench/results/java.json",
    "bench/work/rows.arrow",
    "data/trips/.hoodie/hoodie.properties",
    "site/index.html",
    "spark-warehouse/trips/part.parquet",
    "src/tablekeeper/__pycache__/errors.cpython-312.pyc",
    "trips.zip",
)
LARGEST_BYTES = 5 << 20


def packed(root: Path) -> dict[str, Path]:
    files = SdistBuilder(str(root)).recurse_included_files()
    return {Path(file.relative_path).as_posix(): Path(file.path) for file in files}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout with the project's own settings, in which everything that could be left behind was."""
    for name in (*SOURCES, *LEFT_BEHIND):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


def test_the_source_distribution_holds_sources_and_nothing_that_a_run_leaves_behind(checkout: Path) -> None:
    assert sorted(packed(checkout)) == sorted(SOURCES)


def test_no_file_of_the_source_distribution_is_large() -> None:
    files = packed(ROOT)
    assert "src/tablekeeper/format/avro_schemas/__init__.py" in files
    assert {name: path.stat().st_size for name, path in files.items() if path.stat().st_size > LARGEST_BYTES} == {}
