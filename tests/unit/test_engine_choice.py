"""Which interpreter Spark's workers run with, and who makes the format known to a session."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tablekeeper.engine.spark import SparkEngine
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.table.engines import choose_engine


class Context:
    """What the engine looks at in a Spark context."""

    def __init__(self, master: str, settings: dict[str, str]) -> None:
        self.master = master
        self.pythonExec = "python3"
        self._settings = settings

    def getConf(self) -> dict[str, str]:  # noqa: N802 (Spark's name)
        return self._settings


class Session:
    """A session of Spark 3.5, which knows nothing of data sources in Python."""

    def __init__(self, master: str = "local[2]", **settings: str) -> None:
        self._sc = Context(master, settings)


class Session4(Session):
    """A session of Spark 4 that counts what is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: list[str] = []

    @property
    def dataSource(self) -> Session4:  # noqa: N802 (Spark's name)
        return self

    def register(self, source: Any) -> None:
        self.registered.append(source.name())


@pytest.fixture
def other_python_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another installation's python3 comes first on the path, and nobody has chosen one."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("other_python_first")
def test_local_workers_run_with_the_interpreter_of_the_caller() -> None:
    session: Any = Session()
    assert SparkEngine(session).chose_interpreter
    assert session._sc.pythonExec == sys.executable


@pytest.mark.usefixtures("other_python_first")
def test_a_choice_of_the_users_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[Any] = [Session(**{"spark.pyspark.python": "python-of-mine"}), Session(master="yarn")]
    assert [SparkEngine(session).chose_interpreter for session in sessions] == [False, False]
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-mine")
    sessions.append(Session())
    assert not SparkEngine(sessions[-1]).chose_interpreter
    assert {session._sc.pythonExec for session in sessions} == {"python3"}


def test_an_activated_environment_needs_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    session: Any = Session()
    assert not SparkEngine(session).chose_interpreter


@pytest.mark.usefixtures("other_python_first")
def test_a_session_that_cannot_find_the_format_gets_it_registered_once() -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="the Python data source API came with Spark 4")
    session = Session4()
    for _ in range(2):
        choose_engine(spark=session, engine=None, runtime=SYSTEM_RUNTIME)
    assert session.registered == ["tablekeeper"]


@pytest.mark.usefixtures("other_python_first")
def test_a_session_of_spark_3_is_taken_as_it_is() -> None:
    assert choose_engine(spark=Session(), engine="spark", runtime=SYSTEM_RUNTIME).name == "spark"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"spark": None, "engine": None}, "pass spark="),
        ({"spark": None, "engine": "flink"}, "'flink'"),
        ({"spark": Session(), "engine": "local"}, "runs without Spark"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        choose_engine(**given, runtime=SYSTEM_RUNTIME)


class Column:
    """As in Spark: every name is a field of it."""

    def __getattr__(self, name: str) -> Column:
        return self


def test_a_column_is_not_taken_for_rows() -> None:
    session: Any = Session()
    with pytest.raises(InvalidRequestError, match="takes a Spark DataFrame, not Column"):
        SparkEngine(session).schema_of(Column())
