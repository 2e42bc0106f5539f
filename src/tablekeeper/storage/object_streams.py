"""Files of object stores as streams that pyarrow reads and writes with few requests.

An input begins with the object's last bytes, where Parquet keeps its footer: one request tells size and footer.
Reads in sequence fetch ever larger pieces; a large read is split and fetched in parallel.

An output is uploaded in parts while it is written. The store shows nothing before the last step, which is taken
only if everything went well; parts of an abandoned output are removed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, BinaryIO, Protocol, cast

import pyarrow as pa

from tablekeeper.errors import InvalidRequestError

__all__ = ["FetchRanges", "ObjectInput", "PartWriter", "publishing_output", "split_range"]

_MIN_FETCH = 256 * 1024
_MAX_FETCH = 8 * 1024 * 1024
_COLLECTED_BYTES = 1024 * 1024


class FetchRanges(Protocol):
    """Fetches several byte ranges of one object, each given as (start, length)."""

    def __call__(self, ranges: list[tuple[int, int]], /) -> list[bytes]: ...


class PartWriter(Protocol):
    """An upload in parts, which leaving the context completes, or abandons if an exception is passed."""

    def write(self, buffer: Any, /) -> int: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class ObjectInput(io.RawIOBase):
    """A seekable view of one object of `size` bytes, of which the last ones, `tail`, are at hand."""

    def __init__(self, fetch: FetchRanges, *, size: int, tail: bytes) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._tail = tail
        self._position = 0
        self._buffer = b""
        self._buffer_start = 0
        self._window = _MIN_FETCH

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        """Bytes of the whole object."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise InvalidRequestError(f"Cannot seek to {base + offset}, before the start of the file.")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        data = self._at(self._position, length)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, target: Any, /) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def _at(self, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return self._tail[start - tail_start : start - tail_start + length]
        if start + length > tail_start:
            return self._at(start, tail_start - start) + self._tail[: start + length - tail_start]
        offset = start - self._buffer_start
        if offset >= 0 and offset + length <= len(self._buffer):
            return self._buffer[offset : offset + length]
        return self._load(start, length, end=tail_start)

    def _load(self, start: int, length: int, *, end: int) -> bytes:
        """Fetch what was asked for and, if reads come in sequence, ever more behind it."""
        overlap = start - self._buffer_start
        buffer_end = self._buffer_start + len(self._buffer)
        head = self._buffer[overlap:] if 0 <= overlap <= len(self._buffer) else b""
        in_sequence = self._buffer_start <= start <= buffer_end
        self._window = min(_MAX_FETCH, self._window * 2) if in_sequence else _MIN_FETCH
        first = start + len(head)
        wanted = min(end - first, max(length - len(head), self._window))
        data = head + b"".join(self._fetch(split_range(first, wanted)))
        if len(data) > 2 * _MAX_FETCH:
            # A read this large is not likely to be repeated, and keeping it would double its memory.
            self._buffer, self._buffer_start = b"", start + length
        else:
            self._buffer, self._buffer_start = data, start
        return data[:length] if len(data) > length else data


class _PartOutput(io.RawIOBase):
    """The writable side of a part writer. After `detach_writer`, late flushes go nowhere."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        super().__init__()
        self._write: Callable[[Any], None] | None = write
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any, /) -> int:
        # Arrow's buffers are of signed bytes, which the client refuses.
        view = memoryview(data).cast("B")
        if self._write is not None and view.nbytes:
            self._write(view)
        self._position += view.nbytes
        return view.nbytes

    def detach_writer(self) -> None:
        self._write = None


def split_range(start: int, length: int) -> list[tuple[int, int]]:
    """The range as (start, length) pieces that are worth a request of their own."""
    return [(at, min(_MAX_FETCH, start + length - at)) for at in range(start, start + length, _MAX_FETCH)]


@contextmanager
def publishing_output(writer: PartWriter, *, guard: Callable[[], Any]) -> Iterator[BinaryIO]:
    """A stream into `writer`, completed on normal exit and abandoned on any exception.

    `guard` makes a context manager that translates the errors of one call to the writer.
    """

    def write(data: Any) -> None:
        with guard():
            writer.write(data)

    raw = _PartOutput(write)
    # Parquet is written in many small pieces; collecting them saves a crossing into Python for each.
    stream = pa.BufferedOutputStream(pa.PythonFile(raw, mode="w"), _COLLECTED_BYTES)
    try:
        yield cast(BinaryIO, stream)
        if not stream.closed:
            stream.close()
    except BaseException as error:
        raw.detach_writer()
        writer.__exit__(type(error), error, error.__traceback__)
        raise
    raw.detach_writer()
    with guard():
        writer.__exit__(None, None, None)
