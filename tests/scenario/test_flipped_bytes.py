"""One byte of a log file is flipped, at every place in turn: a read fails, or gives the rows from before.

The footer of the Parquet file inside a block, the keys of a delete block and the rows of an Avro block have no checksum
in Hudi, so that damage to them may go unnoticed. They are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tablekeeper.errors import TablekeeperError
from tablekeeper.format.log_blocks import decode_blocks
from tests.support.recovery_world import FIRST, World
from tests.support.table_builder import trips

__all__: list[str] = []

MASKS = (0x01, 0x03, 0xFF)


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A merge-on-read table with two logs on one base file, one with rows and one with a delete."""
    made = make(table_type="mor")
    made.upsert(FIRST)
    made.upsert(trips(("a", "sf", 2, 2.0)))
    made.clock.advance(10)
    made.table.delete(trips(("b", "sf")).select(["id", "city"]))
    return made


def _places(data: bytes, *, file: str) -> list[int]:
    """Every place of the frame, with short headers, and a part of those in the pages of a Parquet file."""
    places = set(range(len(data)))
    for block in decode_blocks(data, file=file):
        content = bytes(block.content)
        start = data.index(content)
        places -= set(range(start, start + len(content)))
        if content.startswith(b"PAR1"):
            footer = int.from_bytes(content[-8:-4], "little") + 8
            places |= set(range(start, start + len(content) - footer, 7))
            # Nobody reads the text of the schema beside a Parquet file.
            places -= set(range(data.index(b"{"), start - 8))
    return sorted(places)


@pytest.mark.parametrize("number", [0, 1], ids=["rows", "a delete"])
def test_a_flipped_byte_is_detected_or_does_no_harm(world: World, number: int) -> None:
    path = sorted(path for path in world.data_files() if ".log." in path)[number]
    data = world.storage.read(path)
    expected = world.rows()
    table, storage = world.table, world.storage
    unseen = []
    for at in _places(data, file=path):
        for mask in MASKS:
            storage.put(path, data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            try:
                frame = table.read(columns=["id", "fare"])
            except TablekeeperError:
                continue
            rows = sorted(zip(*(frame.column(name).to_pylist() for name in ("id", "fare")), strict=True))
            if rows != expected:
                unseen.append((at, mask))
    assert not unseen
