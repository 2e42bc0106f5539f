"""Damaged bytes for codec tests, and the one way in which a decoder may answer to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tablekeeper.errors import CorruptTableError

__all__ = ["DAMAGED_FILE", "as_written_to", "assert_survives_damage", "damage", "truncations"]

DAMAGED_FILE = "some/partition/the-damaged-file"

_TELLING_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` cut short, overwritten in places, or with bytes put in or left out."""
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(damaged) - 1)))
        kind = draw(st.sampled_from(("cut", "set", "insert", "leave out", "length")))
        if kind == "cut":
            del damaged[at:]
        elif kind == "leave out":
            del damaged[at : at + draw(st.integers(1, 16))]
        elif kind == "insert":
            damaged[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "set":
            value = draw(st.one_of(st.sampled_from(_TELLING_BYTES), st.integers(0, 255)))
            damaged[at : at + 1] = bytes([value])
        else:
            damaged[at : at + 4] = draw(
                st.sampled_from((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xfe\xff\xff\x0f"))
            )
    return bytes(damaged)


def as_written_to(path: str, base_file: bytes) -> bytes:
    """The rows of a base file as a task would have written them to another file."""
    rows = pq.read_table(pa.BufferReader(base_file))
    name = pa.array([path.rpartition("/")[2]] * len(rows), pa.string())
    written = pa.BufferOutputStream()
    pq.write_table(rows.set_column(rows.column_names.index("_hoodie_file_name"), "_hoodie_file_name", name), written)
    return bytes(written.getvalue())


def truncations(data: bytes, *, most: int = 400) -> Iterator[bytes]:
    """`data` without its end, cut at up to `most` places."""
    step = max(1, len(data) // most)
    return (data[:length] for length in range(0, len(data), step))


def assert_survives_damage(decode: Callable[[bytes], object], data: bytes) -> None:
    """Decoding gives a value or a `CorruptTableError` that names the file; anything else fails the test."""
    error = _corruption(decode, data)
    if error is not None:
        assert error.file == DAMAGED_FILE
        assert DAMAGED_FILE in str(error)
        assert error.reason


def _corruption(decode: Callable[[bytes], object], data: bytes) -> CorruptTableError | None:
    try:
        decode(data)
    except CorruptTableError as error:
        return error
    return None
