"""What every test shares: markers from folders, one Spark session for a whole process, fresh table paths.

A test is marked after the folder of `tests/` it lies in (`tests/unit` -> `unit`), and with `spark` if it
uses the session, so that no test can be left out of a run by a forgotten decorator. A test in no such
folder is refused. A folder can add session settings by overriding `spark_settings`.

Several workers (`-n 2 --dist loadgroup`) share the tests by file, but for those that use Spark: they all go to
one worker and are the first to go, so that a run has one JVM and does not end by waiting for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadGroupScheduling

from tests.support.table_builder import TableBuilder

TESTS = Path(__file__).resolve().parent
FOLDER_MARKERS = (
    "unit",
    "property",
    "contract",
    "scenario",
    "sim",
    "golden",
    "interop",
    "server",
    "browser",
    "clusters",
    "fuzz",
    "tidy",
)
# Folders in the order in which workers take them up: at the end there is little left to wait for.
LONG_FIRST = (
    "scenario",
    "sim",
    "contract",
    "property",
    "golden",
    "interop",
    "unit",
    "tidy",
    "server",
    "browser",
    "clusters",
    "fuzz",
)
# Sessions of tests live for minutes, and two of them share two cores: optimizing compilers and parallel collectors
# cost such a session more than they give back.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# How long an example takes says more about the machine than about the code; what failed elsewhere can be replayed here.
# CI judges a change, so it draws the same examples each time; other machines draw new ones.
hypothesis_settings.register_profile(
    "tablekeeper", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
hypothesis_settings.load_profile("tablekeeper")


# Whoever starts the workers may have loaded readline, which hands them the size of a terminal that they do not have.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


def folder_marker(path: Path) -> str | None:
    """The marker of a test file: the first folder below `tests/`, if it is one of ours."""
    if not path.is_relative_to(TESTS):
        return None
    first = path.relative_to(TESTS).parts[0]
    return first if first in FOLDER_MARKERS else None


# Before the workers' own hook, which makes the group a part of the test's id.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test; refuse one that lies in no known folder. Workers begin with what takes long."""
    for item in items:
        marker = folder_marker(item.path)
        if marker is None:
            raise pytest.UsageError(f"{item.path}: put this test into one of {', '.join(FOLDER_MARKERS)} below tests/")
        item.add_marker(marker)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))
    if hasattr(config, "workerinput"):
        items.sort(key=_place_in_queue)


def _place_in_queue(item: pytest.Item) -> tuple[bool, int]:
    return item.get_closest_marker("spark") is None, LONG_FIRST.index(folder_marker(item.path) or "")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `loadgroup`, tests outside of groups go to workers by file; other kinds of distribution are xdist's own."""
    if config.getoption("dist") != "loadgroup":
        return None
    scheduler = LoadGroupScheduling(config, log)
    by_group = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: by_group(nodeid).partition("::")[0]
    return scheduler


@pytest.fixture(scope="session")
def spark_settings() -> Mapping[str, str]:
    """Settings on top of the usual ones; a folder that needs more (a jar, say) overrides this fixture."""
    return {}


@pytest.fixture(scope="session")
def spark(spark_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one local Spark session of this process: two cores, UTC, no UI, quiet."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (most runs of a few tests need no JVM)

    # Python workers start from the environment of the JVM, so they find the project even when it is not installed.
    roots = [str(TESTS.parent), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(root for root in roots if root)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    home = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={home} {SHORT_LIVED_JVM}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **spark_settings,
    }
    builder = SparkSession.builder.master("local[2]").appName("tablekeeper-tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def table_path(tmp_path: Path) -> str:
    """An absolute path where no table is yet."""
    return str(tmp_path / "table")


@pytest.fixture
def tables() -> Iterator[TableBuilder]:
    """Makes tables in memory, which are gone when the test is."""
    builder = TableBuilder()
    yield builder
    builder.forget()


@pytest.fixture(params=["cow", "mor"])
def table_type(request: pytest.FixtureRequest) -> str:
    """The test runs for both types of tables."""
    return str(request.param)


@pytest.fixture
def table_uri(table_path: str) -> str:
    """The same path as a `file://` URI."""
    return Path(table_path).as_uri()
