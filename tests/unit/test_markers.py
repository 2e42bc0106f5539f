"""Markers in both layouts."""

from __future__ import annotations

import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.storage.memory import MemoryStorage, forget_memory
from tablekeeper.storage.protocol import Storage
from tablekeeper.txn.markers import (
    Marker,
    MarkerKind,
    create_marker,
    delete_markers,
    load_marked_instants,
    load_markers,
)

INSTANT = "20240101000000000"
ROOT = f".hoodie/.temp/{INSTANT}"
BASE = "f1-0_0-1-2_20240101000000000.parquet"
LOG = ".f1-0_20240101000000000.log.1_0-1-2"


@pytest.fixture
def storage() -> Storage:
    forget_memory("markers")
    return MemoryStorage("memory://markers/table")


def test_a_direct_marker_is_an_empty_object_named_after_its_data_file(storage: Storage) -> None:
    create_marker(storage, instant=INSTANT, partition="p=a/q=b", file_name=BASE, kind=MarkerKind.CREATE)
    assert storage.read(f"{ROOT}/p=a/q=b/{BASE}.marker.CREATE") == b""


def test_a_marker_in_a_table_without_partitions_lies_in_the_root_of_the_instant(storage: Storage) -> None:
    create_marker(storage, instant=INSTANT, partition="", file_name=LOG, kind=MarkerKind.APPEND)
    assert storage.stat(f"{ROOT}/{LOG}.marker.APPEND") is not None
    assert load_markers(storage, instant=INSTANT) == [Marker("", LOG, MarkerKind.APPEND)]


def test_creating_a_marker_again_changes_nothing(storage: Storage) -> None:
    for _ in range(2):
        create_marker(storage, instant=INSTANT, partition="p", file_name=BASE, kind=MarkerKind.MERGE)
    assert load_markers(storage, instant=INSTANT) == [Marker("p", BASE, MarkerKind.MERGE)]


def test_a_marker_knows_the_path_of_its_data_file() -> None:
    assert Marker("p=a/q=b", BASE, MarkerKind.CREATE).path == f"p=a/q=b/{BASE}"
    assert Marker("", BASE, MarkerKind.CREATE).path == BASE


def test_direct_markers_load_without_a_type_file_and_without_checksum_sidecars(storage: Storage) -> None:
    storage.put(f"{ROOT}/p/{BASE}.marker.CREATE", b"")
    storage.put(f"{ROOT}/p/.{BASE}.marker.CREATE.crc", b"crc")
    assert load_markers(storage, instant=INSTANT) == [Marker("p", BASE, MarkerKind.CREATE)]


def test_markers_of_a_timeline_server_are_read_from_all_its_files(storage: Storage) -> None:
    storage.put(f"{ROOT}/MARKERS.type", b"TIMELINE_SERVER_BASED")
    storage.put(f"{ROOT}/MARKERS0", f"p/{BASE}.marker.MERGE\n{LOG}.marker.CREATE\n".encode())
    storage.put(f"{ROOT}/MARKERS7", f"q=1/r=2/{BASE}.marker.CREATE".encode())
    assert load_markers(storage, instant=INSTANT) == [
        Marker("", LOG, MarkerKind.CREATE),
        Marker("p", BASE, MarkerKind.MERGE),
        Marker("q=1/r=2", BASE, MarkerKind.CREATE),
    ]


def test_both_layouts_in_one_directory_are_united(storage: Storage) -> None:
    storage.put(f"{ROOT}/MARKERS.type", b"TIMELINE_SERVER_BASED")
    storage.put(f"{ROOT}/MARKERS0", f"p/{BASE}.marker.MERGE\n".encode())
    create_marker(storage, instant=INSTANT, partition="p", file_name=LOG, kind=MarkerKind.CREATE)
    assert [marker.file_name for marker in load_markers(storage, instant=INSTANT)] == [LOG, BASE]


def test_an_instant_without_markers_has_none(storage: Storage) -> None:
    assert load_markers(storage, instant=INSTANT) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("MARKERS.type", b"SOMETHING_NEW"),
        ("MARKERS0", b"p/f1.parquet.mark"),
        ("MARKERS0", b"\xff\xfe"),
        ("p/f1.parquet.marker.UNKNOWN", b""),
        ("p/stray.txt", b""),
    ],
)
def test_what_is_no_marker_is_reported_with_its_file_and_not_left_out(
    storage: Storage, name: str, content: bytes
) -> None:
    storage.put(f"{ROOT}/{name}", content)
    with pytest.raises(CorruptTableError) as caught:
        load_markers(storage, instant=INSTANT)
    assert caught.value.file == f"{ROOT}/{name}"


def test_deleting_the_markers_of_one_instant_leaves_those_of_others(storage: Storage) -> None:
    other = "20240101000000001"
    for instant in (INSTANT, other):
        create_marker(storage, instant=instant, partition="p", file_name=BASE, kind=MarkerKind.CREATE)
    assert load_marked_instants(storage) == [INSTANT, other]
    delete_markers(storage, instant=INSTANT)
    delete_markers(storage, instant=INSTANT)
    assert load_marked_instants(storage) == [other]
    assert load_markers(storage, instant=other) == [Marker("p", BASE, MarkerKind.CREATE)]
