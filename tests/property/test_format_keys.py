"""Bloom filters and hashes over key columns: equal to a plain computation, key by key, of what Java does."""

from __future__ import annotations

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.bloom import BloomFilterBuilder, BloomProbe, bloom_size, build_bloom_filter, might_contain
from tablekeeper.format.data_files import decode_footer, encode_footer
from tablekeeper.format.hashing import (
    bucket_of_values,
    java_string_hash,
    md5_key,
    xxhash64_key,
)
from tablekeeper.format.metadata_keys import metadata_file_group_index
from tests.support.damage import DAMAGED_FILE, assert_survives_damage, damage, truncations

__all__: list[str] = []

KEY = st.text(max_size=12) | st.text(alphabet="abc0123", max_size=40)
KEYS = st.lists(st.none() | KEY, max_size=30)
MASK = 0xFFFFFFFF
M = 0x5BD1E995


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _murmur2(data: bytes, seed: int) -> int:
    value = (seed ^ len(data)) & MASK
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * M & MASK
        word = (word ^ word >> 24) * M & MASK
        value = (value * M & MASK) ^ word
    if len(data) > whole:
        for shift, byte in enumerate(reversed(data[whole:])):
            value ^= (_signed(byte) << 8 * shift) & MASK
        value = value * M & MASK
    value = (value ^ value >> 13) * M & MASK
    return value ^ value >> 15


def _bits_of(key: str, *, hashes: int, bits: int) -> set[int]:
    value, positions = 0, set()
    for _ in range(hashes):
        value = _murmur2(key.encode(), value)
        signed = value - 2**32 if value >= 2**31 else value
        positions.add(abs(signed) % bits)
    return positions


def _java_hash(text: str) -> int:
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = 31 * value + high * 256 + low & MASK
    return value


def _as_signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


@given(KEYS, st.integers(1, 50), st.sampled_from((0.1, 1e-3, 1e-9)))
def test_a_filter_has_exactly_the_bits_that_java_sets(keys: list[str | None], entries: int, rate: float) -> None:
    data = build_bloom_filter(pa.array(keys, pa.string()), expected_entries=entries, false_positive_rate=rate)
    version, hashes, kind, bits = struct.unpack_from(">iibi", data)
    assert (version, kind) == (-1, 1)
    assert (bits, hashes) == bloom_size(expected_entries=entries, false_positive_rate=rate)
    content = data[13:]
    assert len(content) == (bits + 7) // 8
    expected = set().union(*(_bits_of(key, hashes=hashes, bits=bits) for key in keys if key is not None))
    assert {i for i in range(len(content) * 8) if content[i // 8] >> i % 8 & 1} == expected


@given(KEYS, st.lists(KEY, max_size=20))
def test_every_key_put_in_is_found_and_lookups_agree_with_the_bits(keys: list[str | None], others: list[str]) -> None:
    data = build_bloom_filter(pa.array(keys, pa.string()), expected_entries=20, false_positive_rate=0.05)
    _, hashes, _, bits = struct.unpack_from(">iibi", data)
    asked = [*keys, *others]
    filled = set().union(*(_bits_of(key, hashes=hashes, bits=bits) for key in keys if key is not None))
    expected = [key is not None and _bits_of(key, hashes=hashes, bits=bits) <= filled for key in asked]
    assert might_contain(data, pa.array(asked, pa.string())).tolist() == expected
    assert all(found for key, found in zip(keys, expected, strict=False) if key is not None)


@given(st.lists(KEY, max_size=30), st.lists(KEY, max_size=20), st.data())
def test_a_probe_of_several_filters_agrees_with_looking_up_in_each(
    keys: list[str], others: list[str], data: st.DataObject
) -> None:
    asked = pa.array([*keys, *others], pa.string())
    probe = BloomProbe(asked)
    first = data.draw(st.integers(0, len(asked)))
    end = data.draw(st.integers(first, len(asked)))
    for rate in (0.3, 1e-9):
        built = build_bloom_filter(pa.array(keys, pa.string()), expected_entries=20, false_positive_rate=rate)
        expected = [n for n in range(first, end) if might_contain(built, asked)[n]]
        found = probe.candidates(built, first=first, end=end, bloom_type="SIMPLE", file="")
        assert found.tolist() == expected


@given(st.lists(KEYS, max_size=4))
def test_adding_in_pieces_gives_the_same_filter(pieces: list[list[str | None]]) -> None:
    whole = pa.array([key for piece in pieces for key in piece], pa.string())
    builder = BloomFilterBuilder(50, 1e-4)
    for index, piece in enumerate(pieces):
        array = pa.array([None, *piece], pa.large_string() if index % 2 else pa.string())[1:]
        builder.add(pa.chunked_array([array]) if index % 3 else array)
    assert builder.encode() == build_bloom_filter(whole, expected_entries=50, false_positive_rate=1e-4)


def test_dictionary_columns_are_taken_too() -> None:
    keys = pa.array(["a", "b", None, "a"])
    data = build_bloom_filter(keys, expected_entries=5, false_positive_rate=0.01)
    assert build_bloom_filter(keys.dictionary_encode(), expected_entries=5, false_positive_rate=0.01) == data


@pytest.mark.parametrize("rate", [0.05, 1e-3])
def test_the_promised_rate_of_false_positives_is_kept(rate: float) -> None:
    count = 20_000
    keys = pa.array([f"in-{number}" for number in range(count)])
    builder = BloomFilterBuilder(count, rate, max_hashes=3)
    builder.add(keys)
    others = pa.array([f"out-{number}" for number in range(100_000)])
    assert might_contain(builder.encode(), keys).all()
    assert np.mean(might_contain(builder.encode(), others)) < 1.5 * rate


def test_a_filter_with_enough_hash_functions_has_the_size_that_java_gives_it() -> None:
    assert bloom_size(expected_entries=60_000, false_positive_rate=1e-9, max_hashes=30) == (2_587_966, 30)
    assert bloom_size(expected_entries=60_000, false_positive_rate=1e-3) == (862_656, 10)
    assert bloom_size(expected_entries=0, false_positive_rate=0.5)[0] >= 1


@given(st.integers(1, 100_000), st.sampled_from((0.2, 0.01, 1e-6, 1e-9, 1e-12)), st.integers(1, 20))
def test_fewer_hash_functions_are_made_up_for_by_bits(entries: int, rate: float, most: int) -> None:
    bits, hashes = bloom_size(expected_entries=entries, false_positive_rate=rate, max_hashes=most)
    assert hashes <= most
    if bits < 2**26:
        assert (1 - math.exp(-hashes * entries / bits)) ** hashes <= rate * 1.1


def test_the_size_of_a_filter_is_bounded() -> None:
    assert bloom_size(expected_entries=10**12, false_positive_rate=1e-9) == (2**26, 1)


@pytest.mark.parametrize(("entries", "rate"), [(-1, 0.1), (1, 0.0), (1, 1.0)])
def test_an_impossible_filter_is_refused(entries: int, rate: float) -> None:
    with pytest.raises(ValueError, match="no filter"):
        BloomFilterBuilder(entries, rate)


def _dynamic(rows: list[bytes]) -> bytes:
    return rows[0][:13] + struct.pack(">iii", 10, 1, len(rows)) + b"".join(rows)


@given(st.lists(st.lists(KEY, max_size=10), min_size=1, max_size=4), st.lists(KEY, max_size=10))
def test_a_dynamic_filter_finds_what_any_of_its_rows_has(parts: list[list[str]], others: list[str]) -> None:
    rows = [build_bloom_filter(pa.array(p, pa.string()), expected_entries=9, false_positive_rate=0.1) for p in parts]
    asked = pa.array([key for part in parts for key in part] + others, pa.string())
    expected = np.any([might_contain(row, asked) for row in rows], axis=0)
    assert might_contain(_dynamic(rows), asked).tolist() == expected.tolist()


ROW = build_bloom_filter(pa.array(["a", "bc"]), expected_entries=5, false_positive_rate=0.01)
ASKED = pa.array(["a", "key", ""])


@settings(max_examples=300)
@given(st.one_of(damage(ROW), damage(_dynamic([ROW, ROW])), st.binary(max_size=100)))
def test_a_damaged_filter_is_reported_with_the_file_name_and_never_worse(damaged: bytes) -> None:
    assert_survives_damage(lambda data: might_contain(data, ASKED, file=DAMAGED_FILE), damaged)


@pytest.mark.parametrize(("kind", "whole"), [("SIMPLE", ROW), ("DYNAMIC_V0", _dynamic([ROW, ROW]))])
def test_no_truncated_filter_is_taken_for_a_whole_one(kind: str, whole: bytes) -> None:
    assert might_contain(whole, ASKED, bloom_type=kind, file=DAMAGED_FILE)[0]
    for cut in truncations(whole):
        with pytest.raises(CorruptTableError, match=DAMAGED_FILE):
            might_contain(cut, ASKED, bloom_type=kind, file=DAMAGED_FILE)


def test_a_filter_of_another_kind_than_its_name_says_is_refused() -> None:
    for kind, data in (("DYNAMIC_V0", ROW), ("SIMPLE", _dynamic([ROW])), ("UNHEARD_OF", ROW)):
        with pytest.raises(CorruptTableError, match=DAMAGED_FILE):
            might_contain(data, ASKED, bloom_type=kind, file=DAMAGED_FILE)


@given(st.none() | KEY, st.none() | KEY, st.none() | st.binary(max_size=30), KEY)
def test_footers_are_read_back(low: str | None, high: str | None, bloom: bytes | None, schema: str) -> None:
    encoded = encode_footer(avro_schema_json=schema, min_key=low, max_key=high, bloom=bloom, bloom_type="SIMPLE")
    footer = decode_footer({key.encode(): value.encode() for key, value in encoded.items()}, file="f")
    assert (footer.min_key, footer.max_key, footer.avro_schema_json) == (low, high, schema)
    assert footer.bloom == (bloom or None)


FOOTER_KEYS = sorted(encode_footer(avro_schema_json="", min_key="", max_key="", bloom=b"", bloom_type=""))


@given(st.dictionaries(st.sampled_from(FOOTER_KEYS), st.binary(max_size=30)))
def test_a_damaged_footer_is_reported_with_the_file_name_and_never_worse(metadata: dict[str, bytes]) -> None:
    encoded = {key.encode(): value for key, value in metadata.items()}
    assert_survives_damage(lambda _: decode_footer(encoded, file=DAMAGED_FILE), b"")


@given(KEYS)
def test_texts_hash_as_java_strings(texts: list[str | None]) -> None:
    expected = [0 if text is None else _as_signed(_java_hash(text)) for text in texts]
    assert java_string_hash(pa.array(texts, pa.string())).tolist() == expected
    assert java_string_hash(pa.array(["é", *texts], pa.large_string())[1:]).tolist() == expected


@given(st.lists(st.tuples(KEY, KEY), max_size=20), st.integers(1, 1000))
def test_buckets_are_those_of_a_java_list_of_strings(rows: list[tuple[str, str]], buckets: int) -> None:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(2)]
    expected = []
    for row in rows:
        value = 1
        for text in row:
            value = 31 * value + _java_hash(text) & MASK
        expected.append((value & 0x7FFFFFFF) % buckets)
    assert bucket_of_values(columns, buckets=buckets).tolist() == expected


@given(KEY, st.integers(1, 100))
def test_keys_of_the_metadata_table_go_to_the_file_group_that_java_asks(key: str, groups: int) -> None:
    assert metadata_file_group_index(key, groups=groups) == abs(_as_signed(_java_hash(key))) % groups


def test_hashes_known_from_java() -> None:
    # "polygenelubricants" is the well-known text whose Java hash is the lowest 32-bit integer.
    assert java_string_hash(pa.array(["hello", "polygenelubricants"])).tolist() == [99162322, -(2**31)]
    assert metadata_file_group_index("polygenelubricants", groups=10) == 8
    assert xxhash64_key("x") == xxhash.xxh64_digest(b"x", seed=0xFFFFFFFFDABADABA)
    assert md5_key("").hex() == "d41d8cd98f00b204e9800998ecf8427e"


def test_columns_longer_than_a_chunk_are_hashed_to_their_end() -> None:
    texts = [f"{number * 7919}" + ("é😀" if number % 5 == 0 else "") for number in range(40_000)]
    keys = pa.array(texts)
    assert java_string_hash(keys).tolist() == [_as_signed(_java_hash(text)) for text in texts]
    data = build_bloom_filter(keys, expected_entries=len(texts), false_positive_rate=0.5)
    _, hashes, _, bits = struct.unpack_from(">iibi", data)
    expected = set().union(*(_bits_of(text, hashes=hashes, bits=bits) for text in texts))
    found = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, offset=13), bitorder="little"))
    assert set(found.tolist()) == expected
    assert might_contain(data, keys).all()
