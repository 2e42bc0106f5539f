"""Laws of the HFile codec: nothing is lost on the way, and damage never turns into other entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.hfile_writer import encode_hfile

__all__: list[str] = []

entries = st.dictionaries(st.binary(max_size=40), st.binary(max_size=600), max_size=60).map(
    lambda found: sorted(found.items())
)


def open_hfile(data: bytes) -> HFileReader:
    return HFileReader(data, file="some-hfile")


def _entries_or_error(data: bytes) -> list[tuple[bytes, bytes]] | str:
    """The entries, or the file that the error names."""
    try:
        return list(open_hfile(data).items())
    except CorruptTableError as error:
        return error.file


@given(entries, st.booleans(), st.integers(64, 4096), st.integers(1, 60))
def test_what_was_written_is_read(
    found: list[tuple[bytes, bytes]], compress: bool, block_size: int, most_root_entries: int
) -> None:
    data = encode_hfile(
        found, schema_json="{}", compress=compress, block_size=block_size, most_root_entries=most_root_entries
    )
    reader = open_hfile(data)
    assert list(reader.items()) == found
    assert all(reader.get(key) == value for key, value in found)


texts = st.text(max_size=12).map(str.encode)


@given(st.dictionaries(texts, texts, max_size=60), st.lists(texts, max_size=10), st.integers(1, 60))
def test_a_look_up_of_many_finds_what_is_there(
    found: dict[bytes, bytes], strangers: list[bytes], most_root_entries: int
) -> None:
    data = encode_hfile(sorted(found.items()), schema_json="{}", block_size=64, most_root_entries=most_root_entries)
    wanted = sorted({*list(found)[::2], *strangers})
    assert open_hfile(data).find_many(wanted) == {key: found[key] for key in wanted if key in found}


@given(entries, st.data())
def test_a_cut_off_file_is_refused(found: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    whole = encode_hfile(found, schema_json="{}")
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptTableError, match="some-hfile"):
        list(open_hfile(whole[:length]).items())


@given(entries, st.data())
def test_a_changed_byte_is_noticed_or_means_nothing(found: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    levels = data.draw(st.sampled_from([1, 1000]))
    whole = bytearray(encode_hfile(found, schema_json="{}", block_size=512, most_root_entries=levels))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= data.draw(st.integers(1, 255))
    assert _entries_or_error(bytes(whole)) in (found, "some-hfile")


@given(st.binary(max_size=6000))
def test_any_bytes_are_refused_as_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match="some-hfile"):
        open_hfile(data)
