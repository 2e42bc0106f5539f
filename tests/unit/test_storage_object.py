"""The parts of the object store that need no server: its streams, and what its errors mean."""

from __future__ import annotations

import io
from types import TracebackType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore import exceptions as obs

from tablekeeper.errors import InvalidRequestError, NotFoundError, StorageError
from tablekeeper.storage.object_faults import object_fault, translated
from tablekeeper.storage.object_streams import ObjectInput, publishing_output, split_range

MIB = 1024 * 1024
DATA = bytes(number % 251 for number in range(3_000_000))


class Fetcher:
    """Hands out ranges of `data` and remembers them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, ranges: list[tuple[int, int]], /) -> list[bytes]:
        self.ranges.extend(ranges)
        return [self.data[start : start + length] for start, length in ranges]


def open_view(data: bytes, *, tail: int) -> tuple[ObjectInput, Fetcher]:
    fetcher = Fetcher(data)
    return ObjectInput(fetcher, size=len(data), tail=data[len(data) - tail :]), fetcher


@given(
    st.integers(0, 100_000),
    st.lists(st.tuples(st.integers(0, len(DATA) + 10), st.integers(0, 1_500_000)), min_size=1, max_size=8),
)
def test_any_sequence_of_reads_gives_the_bytes_of_the_object(tail: int, reads: list[tuple[int, int]]) -> None:
    view, fetcher = open_view(DATA, tail=tail)
    for start, length in reads:
        view.seek(start)
        expected = DATA[start : start + length]
        assert view.read(length) == expected
        assert view.tell() == start + len(expected)
    assert all(length > 0 and start + length <= len(DATA) for start, length in fetcher.ranges)


def test_the_tail_at_hand_is_not_fetched_again() -> None:
    view, fetcher = open_view(DATA, tail=1000)
    view.seek(-1000, io.SEEK_END)
    assert view.read() == DATA[-1000:]
    assert fetcher.ranges == []
    view.seek(-1001, io.SEEK_END)
    assert view.read() == DATA[-1001:]
    assert fetcher.ranges == [(len(DATA) - 1001, 1)]


def test_reads_in_sequence_fetch_ever_larger_pieces() -> None:
    view, fetcher = open_view(bytes(10 * MIB), tail=0)
    while view.read(1000):
        pass
    lengths = [length for _, length in fetcher.ranges]
    assert lengths[:4] == [MIB // 2, MIB, 2 * MIB, 4 * MIB]
    assert sum(lengths) == 10 * MIB


def test_reads_here_and_there_stay_small() -> None:
    view, fetcher = open_view(bytes(10 * MIB), tail=0)
    for start in (9 * MIB, 5 * MIB, MIB, 7 * MIB):
        view.seek(start)
        view.read(10)
    assert [length for _, length in fetcher.ranges] == [MIB // 4] * 4


def test_a_large_read_is_split_into_pieces_that_can_be_fetched_at_once() -> None:
    assert split_range(5, 20 * MIB) == [(5, 8 * MIB), (5 + 8 * MIB, 8 * MIB), (5 + 16 * MIB, 4 * MIB)]
    assert split_range(5, 0) == []


def test_an_input_fills_buffers_and_knows_its_size() -> None:
    view, _ = open_view(DATA, tail=10)
    target = bytearray(5)
    assert view.readinto(target) == 5
    assert bytes(target) == DATA[:5]
    assert view.size() == len(DATA)
    assert view.readable()
    assert view.seekable()
    with pytest.raises(InvalidRequestError):
        view.seek(-1)


class Parts:
    """A part writer that remembers how it was left."""

    def __init__(self, *, fails: bool = False) -> None:
        self.written = b""
        self.left_with: list[type[BaseException] | None] = []
        self._fails = fails

    def write(self, buffer: memoryview, /) -> int:
        if self._fails:
            raise obs.GenericError("Server returned non-2xx status code: 500 oops")
        self.written += bytes(buffer)
        return len(buffer)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.left_with.append(kind)


def fill(parts: Parts, *, data: bytes, error: BaseException | None = None) -> None:
    with publishing_output(parts, guard=lambda: translated(action="write", location="s3://b/a")) as sink:
        sink.write(data)
        if error is not None:
            raise error


def test_an_output_is_completed_after_everything_was_written() -> None:
    parts = Parts()
    fill(parts, data=b"x" * 5000)
    assert parts.written == b"x" * 5000
    assert parts.left_with == [None]


def test_an_abandoned_output_writes_nothing_more() -> None:
    parts = Parts()
    with pytest.raises(KeyError):
        fill(parts, data=b"x" * 5000, error=KeyError())
    assert parts.written == b""
    assert parts.left_with == [KeyError]


def test_an_output_whose_last_bytes_cannot_be_written_is_abandoned() -> None:
    parts = Parts(fails=True)
    with pytest.raises(StorageError, match="s3://b/a: cannot write: the store answered 500"):
        fill(parts, data=b"x" * 5000)
    assert parts.left_with == [StorageError]


@pytest.mark.parametrize(
    ("error", "hint", "transient"),
    [
        (obs.GenericError("… status code: 503 Slow Down: …"), "answered 503", True),
        (obs.GenericError("… status code: 429 Too Many: …"), "answered 429", True),
        (obs.GenericError("… HTTP error: error sending request"), "cannot be reached", True),
        (obs.AlreadyExistsError("… status code: 409 Conflict: ConditionalRequestConflict"), "answered 409", True),
        (obs.GenericError("… status code: 400 Bad Request: …\nDebug source: long"), "400 Bad Request", False),
        (obs.PermissionDeniedError("no"), "access denied", False),
        (obs.UnauthenticatedError("no"), "access denied", False),
        (obs.GenericError("PUT http://169.254.169.254/latest/api/token … timed out"), "no credentials", False),
        (obs.GenericError("… status code: 404 Not Found: <Code>NoSuchBucket</Code>"), "bucket does not exist", False),
        (obs.GenericError("HTTP error: builder error"), "allow_http=true", False),
        (obs.NotSupportedError("suffix ranges"), "suffix ranges", False),
        (TimeoutError("late"), "cannot be reached", True),
    ],
)
def test_each_error_says_what_to_do_and_whether_to_try_again(error: Exception, hint: str, transient: bool) -> None:
    fault = object_fault(error, action="read", location="s3://b/a")
    assert str(fault).startswith("s3://b/a: cannot read: ")
    assert hint in str(fault)
    assert "Debug source" not in str(fault)
    assert (fault.path, fault.transient) == ("s3://b/a", transient)


def test_a_missing_object_and_a_bad_name_have_errors_of_their_own() -> None:
    with pytest.raises(NotFoundError), translated(action="read", location="s3://b/a"):
        raise FileNotFoundError("gone")
    with pytest.raises(InvalidRequestError), translated(action="read", location="s3://b/a"):
        raise ValueError("Could not parse path")
