"""Reading a table's properties while another process changes them."""

from __future__ import annotations

from tablekeeper.config.options import Options
from tablekeeper.config.table_properties import new_table_properties
from tablekeeper.storage import MemoryStorage
from tablekeeper.timeline.properties_file import PROPERTIES_FILE, create_properties, load_table_config


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


def test_a_reader_that_meets_a_change_at_the_wrong_moments_looks_again() -> None:
    storage = _ChangedBetweenLooks("memory://properties-race/t")
    properties = new_table_properties(
        name="t", table_type="cow", keys=["id"], partitions=[], ordering=[], avro_schema="{}", options=Options()
    )
    create_properties(storage, properties)
    storage.looks = 0
    assert load_table_config(storage).name == "t"
    assert storage.looks >= 3
