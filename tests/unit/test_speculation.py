"""Whether a table may be changed while Spark starts slow tasks twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.table_builder import TableBuilder

KEY = "hoodie.block.writes.on.speculative.execution"
SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64())])
ROWS = pa.table({"id": ["a"], "city": ["sf"], "ts": [1]}, schema=SCHEMA)


class SpeculatingEngine(LocalEngine):
    speculates = True


def speculating(tables: TableBuilder, **options: str) -> tk.Table:
    made = tables.create(schema=SCHEMA, table_type="mor")
    given = Options({name.replace("__", "."): text for name, text in options.items()})
    return tk.Table(tables.storage(made), SpeculatingEngine(), given, runtime=SYSTEM_RUNTIME)


@pytest.mark.parametrize("options", [{}, {KEY.replace(".", "__"): "true"}], ids=["by default", "when asked"])
def test_no_operation_changes_a_table_under_speculation(tables: TableBuilder, options: dict[str, str]) -> None:
    table = speculating(tables, **options)
    services = (table.compact, table.log_compact, table.cluster, table.clean, table.archive)
    for change in (lambda: table.upsert(ROWS), lambda: table.bulk_insert(ROWS), *services):
        with pytest.raises(tk.InvalidRequestError, match=f"spark.speculation is on.*option {KEY} to false"):
            change()
    assert not list(table.timeline())
    assert table.read().num_rows == 0


def test_the_user_may_change_a_table_under_speculation(tables: TableBuilder) -> None:
    table = speculating(tables, **{KEY.replace(".", "__"): "false"})
    table.bulk_insert(ROWS)
    assert table.read().num_rows == 1


@pytest.mark.parametrize(("text", "speculates"), [("true", True), ("TRUE", True), ("false", False), (None, False)])
def test_the_session_says_whether_it_speculates(text: str | None, speculates: bool) -> None:
    spark_engine = pytest.importorskip("tablekeeper.engine.spark", reason="PySpark is optional")

    def value(name: str, default: str) -> str:
        assert name == "spark.speculation"
        return default if text is None else text

    session: Any = SimpleNamespace(conf=SimpleNamespace(get=value))
    assert spark_engine.SparkEngine(session).speculates is speculates
