"""Tables written by Java Hudi read to exactly the rows that Java reads from them, on both engines."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tablekeeper as tk
from tests.support.rows import describe_difference, normalised_json, spark_json_rows

__all__: list[str] = []

TABLES = Path(__file__).parent / "tables"
NAMES = sorted(path.stem for path in TABLES.glob("*.zip"))

pytestmark = pytest.mark.golden


@pytest.fixture
def golden_table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[str]]:
    """The unpacked table's path and the rows it must read to."""
    name: str = request.param
    with zipfile.ZipFile(TABLES / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    roots = [path.parent.parent for path in tmp_path.glob("**/.hoodie/hoodie.properties")]
    root = min(roots, key=lambda path: len(path.parts))
    rows = json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8"))
    return str(root), normalised_json(rows)


def test_no_golden_table_was_lost() -> None:
    assert len(NAMES) == 29
    assert all((TABLES / f"{name}.json").exists() for name in NAMES)


@pytest.mark.parametrize("golden_table", NAMES, indirect=True)
def test_the_local_engine_reads_exactly_the_rows_that_java_reads(golden_table: tuple[str, list[str]]) -> None:
    path, expected = golden_table
    table = tk.Table.open(path, engine="local").read()
    actual = normalised_json(spark_json_rows(table))
    assert not describe_difference(expected=expected, actual=actual)


@pytest.mark.spark
@pytest.mark.parametrize("golden_table", NAMES, indirect=True)
def test_the_spark_engine_reads_exactly_the_rows_that_java_reads(
    golden_table: tuple[str, list[str]], spark: Any
) -> None:
    path, expected = golden_table
    frame = tk.Table.open(path, spark=spark).read()
    plain = [f"`{name}`" for name in frame.columns if not name.startswith("_hoodie_")]
    rows = frame.selectExpr(f"to_json(struct({','.join(plain)})) as row").collect() if plain else []
    actual = normalised_json([row["row"] for row in rows])
    assert not describe_difference(expected=expected, actual=actual)


@pytest.mark.parametrize("golden_table", ["cow_v6_simplekeygen_hivestyle_no_metafields"], indirect=True)
def test_changes_of_a_table_without_commit_times_in_its_rows_are_refused(golden_table: tuple[str, list[str]]) -> None:
    path, _ = golden_table
    with pytest.raises(tk.UnsupportedFeatureError, match=r"does not keep the commit of each row.* as_of"):
        tk.Table.open(path, engine="local").changes()
