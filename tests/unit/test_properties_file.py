"""Reading and changing a table's properties while another process changes them."""

from __future__ import annotations

import pytest

from tablekeeper.config.options import Options
from tablekeeper.config.table_properties import new_table_properties
from tablekeeper.errors import FencedError
from tablekeeper.storage import MemoryStorage
from tablekeeper.timeline.properties_file import (
    PROPERTIES_FILE,
    change_properties,
    create_properties,
    load_table_config,
)

BACKUP = f"{PROPERTIES_FILE}.backup"


class _ChangedBetweenLooks(MemoryStorage):
    """The properties are away at the first look, and their backup at the second: the change has just ended."""

    looks = 0

    def read(self, path: str) -> bytes:
        self.looks += 1
        if self.looks == 1:
            content = super().read(PROPERTIES_FILE)
            self.delete(PROPERTIES_FILE)
            try:
                return super().read(path)
            finally:
                self.put(PROPERTIES_FILE, content)
        return super().read(path)


def create(storage: MemoryStorage) -> None:
    properties = new_table_properties(
        name="t", table_type="cow", keys=["id"], partitions=[], ordering=[], avro_schema="{}", options=Options()
    )
    create_properties(storage, properties)


def test_a_reader_that_meets_a_change_at_the_wrong_moments_looks_again() -> None:
    storage = _ChangedBetweenLooks("memory://properties-race/t")
    create(storage)
    storage.looks = 0
    assert load_table_config(storage).name == "t"
    assert storage.looks >= 3


class _Overtaken(MemoryStorage):
    """The process sleeps in each of its changing calls until another one has changed the properties."""

    is_asleep = False

    def _sleep(self) -> None:
        if not self.is_asleep:
            self.is_asleep = True
            change_properties(self, {"other": "1"})

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        self._sleep()
        super().put(path, data, scope=scope)

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        self._sleep()
        return super().put_if_absent(path, data, scope=scope)

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        self._sleep()
        return super().replace(path, data, version=version, scope=scope)

    def delete(self, path: str, *, scope: str | None = None) -> None:
        self._sleep()
        super().delete(path, scope=scope)


@pytest.mark.parametrize("left", ["", "no_properties"])
def test_whoever_slept_while_another_changed_the_properties_takes_nothing_back(left: str) -> None:
    storage = _Overtaken(f"memory://properties-overtaken-{left}/t")
    storage.is_asleep = True
    create(storage)
    if left:
        # Half of a change of Java's.
        storage.put(BACKUP, storage.read(PROPERTIES_FILE))
        storage.delete(PROPERTIES_FILE)
    storage.is_asleep = False
    with pytest.raises(FencedError):
        change_properties(storage, {"mine": "1"})
    properties = load_table_config(storage).properties
    assert properties["other"] == "1"
    assert "mine" not in properties


def test_a_change_never_takes_the_file_away() -> None:
    deleted: list[str] = []

    class Watched(MemoryStorage):
        def delete(self, path: str, *, scope: str | None = None) -> None:
            deleted.append(path)
            super().delete(path, scope=scope)

    storage = Watched("memory://properties-kept/t")
    create(storage)
    change_properties(storage, {"mine": "1"})
    assert load_table_config(storage).properties["mine"] == "1"
    assert deleted == []
    assert storage.stat(BACKUP) is None
