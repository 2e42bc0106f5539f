"""One byte of a file is flipped, at every place in turn: a read fails, or gives the rows from before.

The footer of a Parquet file, the keys of a delete block and the rows of an Avro block have no checksum in Hudi, so that
damage to them may go unnoticed. Elsewhere the doctor must not call a table healthy that has other rows than before; and
nowhere does an error leave that is not ours. Some places are tried, all of them with TABLEKEEPER_EVERY_FLIP=1.
"""

from __future__ import annotations

import os
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
    missed = []
    for at in _places(data, file=path):
        for mask in MASKS:
            storage.put(path, data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            try:
                frame = table.read(columns=["id", "fare"])
            except TablekeeperError:
                continue
            rows = sorted(zip(*(frame.column(name).to_pylist() for name in ("id", "fare")), strict=True))
            if rows != expected:
                missed.append((at, mask))
    assert not missed


STRIDE = 1 if os.environ.get("TABLEKEEPER_EVERY_FLIP") else 23
PARTS = ["log of rows", "log of a delete", "log of Avro rows", "base file"]


def _damaged_world(make: Callable[..., World], part: str) -> tuple[World, str]:
    """A table and the path of the file in it that is to be damaged."""
    avro = {"hoodie.logfile.data.block.format": "avro"} if "Avro" in part else {}
    made = make(table_type="mor", options=avro)
    made.upsert(FIRST)
    if part == "base file":
        return made, min(path for path in made.data_files() if path.startswith("sf/") and ".parquet" in path)
    if part == "log of a delete":
        made.clock.advance(10)
        made.table.delete(trips(("b", "sf")).select(["id", "city"]))
    else:
        made.upsert(trips(("a", "sf", 2, 2.0)))
    return made, min(path for path in made.data_files() if ".log." in path)


def _unprotected(data: bytes, *, file: str) -> set[int]:
    """Places that docs/damage.md names: rows and keys without a checksum, footers, and the schema beside the rows."""
    if ".log." not in file:
        return set(range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data)))
    places: set[int] = set()
    for block in decode_blocks(data, file=file):
        content = bytes(block.content)
        start = data.index(content)
        footer = int.from_bytes(content[-8:-4], "little") + 8 if content.startswith(b"PAR1") else len(content)
        places |= set(range(start + len(content) - footer, start + len(content)))
        if b"{" in data[:start]:
            places |= set(range(data.index(b"{"), start - 8))
    return places


@pytest.mark.parametrize("part", PARTS)
def test_the_doctor_does_not_call_a_table_healthy_that_has_other_rows(make: Callable[..., World], part: str) -> None:
    world, path = _damaged_world(make, part)
    data, expected = world.storage.read(path), world.table.read()
    unprotected = _unprotected(data, file=path)
    missed = []
    tried = 0
    for at in range(0, len(data), STRIDE):
        for mask in MASKS:
            tried += 1
            world.storage.put(path, data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            try:
                same = world.table.read().equals(expected)
            except TablekeeperError:
                same = False
            if not same and at not in unprotected and world.table.doctor(deep=True).is_healthy:
                missed.append((at, mask))
    assert tried
    assert not missed
