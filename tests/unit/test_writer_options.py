"""What a table remembers of its options, and what is not believed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings
from tablekeeper.storage import MemoryStorage, forget_memory
from tablekeeper.table.writer_options import WRITER_OPTIONS_KEY, load_writer_options, save_writer_options
from tablekeeper.timeline.properties_file import create_properties
from tablekeeper.timeline.transition import create_timeline_directory
from tests.support.table_builder import TRIPS, trips

__all__: list[str] = []

NAME = "writer-options"
FOREIGN = "tablekeeper_test_foreign"
PROPERTIES = {"hoodie.table.name": "trips", "hoodie.table.type": "MERGE_ON_READ"}
DIRECTORY = ".hoodie/.tablekeeper"


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    yield MemoryStorage(f"memory://{NAME}/trips")
    forget_memory(NAME)


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a strategy in a module that has not been imported."""
    (tmp_path / f"{FOREIGN}.py").write_text(
        "from tablekeeper.services.compaction.strategies import CompactionStrategy\n"
        "class Mine(CompactionStrategy):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, FOREIGN, raising=False)
    return f"{FOREIGN}.Mine"


def remember(storage: MemoryStorage, options: Mapping[str, str]) -> None:
    create_properties(storage, {**PROPERTIES, **save_writer_options(storage, Options(options))})


@pytest.mark.parametrize("option", [CompactionSettings.key("strategy"), ClusteringSettings.key("strategy")])
@pytest.mark.parametrize("value", ["os.path.join", "org.apache.hudi.no.such.Strategy", "unknown"])
def test_a_strategy_that_would_have_to_be_imported_is_left_out_and_named(
    storage: MemoryStorage, caplog: pytest.LogCaptureFixture, option: str, value: str
) -> None:
    remember(storage, {option: value, "hoodie.keep.max.commits": "77"})
    with caplog.at_level(logging.WARNING):
        assert load_writer_options(storage).given == {"hoodie.keep.max.commits": "77"}
    assert option in caplog.text
    assert value in caplog.text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (CompactionSettings.key("strategy"), "UnBoundedCompactionStrategy"),
        (CompactionSettings.key("strategy"), "DayBasedCompactionStrategy, BoundedIOCompactionStrategy"),
        (
            CompactionSettings.key("strategy"),
            "org.apache.hudi.table.action.compact.strategy.LogFileSizeBasedCompactionStrategy",
        ),
        (ClusteringSettings.key("strategy"), "SparkSizeBasedClusteringPlanStrategy"),
    ],
)
def test_a_strategy_that_is_known_here_is_remembered(storage: MemoryStorage, option: str, value: str) -> None:
    remember(storage, {option: value})
    assert load_writer_options(storage).given == {option: value}


def test_opening_a_table_imports_no_module_that_the_table_names(foreign: str) -> None:
    uri = f"memory://{NAME}/trips"
    options = {CompactionSettings.key("strategy"): foreign}
    try:
        tk.Table.create(uri, name="trips", schema=TRIPS, key="id", table_type="mor", engine="local", options=options)
        table = tk.Table.open(uri, engine="local")
        table.upsert(trips(("a", "sf", 1, 1.0)))
        table.upsert(trips(("a", "sf", 2, 2.0)))
        assert table.compact() is not None
        assert FOREIGN not in sys.modules
        table.upsert(trips(("a", "sf", 3, 3.0)))
        assert tk.Table.open(uri, engine="local", options=options).compact() is not None
        assert FOREIGN in sys.modules, "what the caller names is imported"
    finally:
        sys.modules.pop(FOREIGN, None)
        forget_memory(NAME)


def created(buckets: int, *, if_not_exists: bool) -> tk.Table:
    return tk.Table.create(
        f"memory://{NAME}/trips",
        name="trips",
        schema=TRIPS,
        key="id",
        engine="local",
        options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": buckets},
        if_not_exists=if_not_exists,
    )


@pytest.mark.parametrize("if_not_exists", [True, False])
@pytest.mark.parametrize("buckets_of_the_loser", [3, 7])
def test_who_comes_second_with_a_table_leaves_the_options_of_the_first(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, if_not_exists: bool, buckets_of_the_loser: int
) -> None:
    place = "tablekeeper.table.table.create_timeline_directory"

    def overtaken(*arguments: Any) -> None:
        # The loser has kept its options and has not made the table yet.
        monkeypatch.setattr(place, create_timeline_directory)
        created(7, if_not_exists=False)
        create_timeline_directory(*arguments)

    monkeypatch.setattr(place, overtaken)
    if if_not_exists:
        created(buckets_of_the_loser, if_not_exists=True)
    else:
        with pytest.raises(tk.InvalidRequestError, match="there is a table"):
            created(buckets_of_the_loser, if_not_exists=False)
    assert load_writer_options(storage).given["hoodie.bucket.index.num.buckets"] == "7"
    assert len(storage.list_names(DIRECTORY)) == 1, "the loser's file is gone"


def test_options_of_a_table_of_an_older_release_are_still_found(storage: MemoryStorage) -> None:
    create_properties(storage, PROPERTIES)
    storage.put(f"{DIRECTORY}/writer.properties", b"hoodie.keep.max.commits=77\n")
    assert load_writer_options(storage).given == {"hoodie.keep.max.commits": "77"}


@pytest.mark.parametrize("mark", ["../../elsewhere", "", "0123"])
def test_a_mark_that_is_none_leads_nowhere(storage: MemoryStorage, mark: str) -> None:
    create_properties(storage, {**PROPERTIES, WRITER_OPTIONS_KEY: mark})
    assert load_writer_options(storage).given == {}
