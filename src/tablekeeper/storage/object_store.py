"""A store in a bucket of S3, Google Cloud Storage or Azure, through the obstore client.

Conditional writes are the store's own: `put_if_absent` is a put with "if none match", `replace` one with "if match" on
the e-tag (the generation on Google's store).

**Lost answers.** A conditional put may be executed although its answer never comes; the next try is then refused by
our own object. Each conditional put therefore carries a random mark in the object's user metadata, and after any doubt
the mark that is found decides who has won. What cannot be told is one of our writes that landed and was replaced by
someone else before we looked: it counts as refused.

**Equal contents.** S3's e-tag is a function of the contents, so that replacing bytes by the same bytes keeps the
version. Contents that are used for locking must say who wrote them.

**Directories** are only common prefixes here. Zero-length keys that end in `/`, as Hadoop leaves to mark directories,
are left out of `list_files`; `walk` leaves them out where something lies below them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import Any, BinaryIO, TypeVar, cast

import obstore
import pyarrow as pa
from obstore import exceptions as obs

from tablekeeper.errors import InvalidRequestError, NotFoundError, StorageError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.storage.object_faults import is_conflict_in_flight, object_fault, translated
from tablekeeper.storage.object_options import open_clients
from tablekeeper.storage.object_streams import ObjectInput, publishing_output
from tablekeeper.storage.protocol import (
    FileInfo,
    StorageSpec,
    VersionedBytes,
    canonical_uri,
    checked_directory,
    checked_path,
    checked_range,
    child_prefix,
)
from tablekeeper.storage.retry import RetryPolicy, retry_delays_s, retry_transient

__all__ = ["ObjectStorage"]

T = TypeVar("T")

_RETRY = RetryPolicy()
_MARK = "tablekeeperwriter"
_TAIL_BYTES = 64 * 1024
_PART_BYTES = 8 * 1024 * 1024
_PARTS_IN_FLIGHT = 4
_FETCH_WIDTH = 8
_DELETE_WIDTH = 16
_DELETE_BATCH = 1000
_LIST_CHUNK = 1000

_users: set[int] = set()


class ObjectStorage:
    """`Storage` below one prefix of a bucket."""

    def __init__(
        self,
        uri: str,
        *,
        options: Mapping[str, str] | None = None,
        retry: RetryPolicy = _RETRY,
        runtime: Runtime = SYSTEM_RUNTIME,
    ) -> None:
        _refuse_after_fork()
        self._spec = StorageSpec(canonical_uri(uri), dict(options or {}))
        self._clients = open_clients(self._spec.uri, self._spec.options)
        self._retry = retry
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"ObjectStorage({self._spec.uri!r})"

    @property
    def spec(self) -> StorageSpec:
        return self._spec

    @property
    def has_scopes(self) -> bool:
        return False

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        """Nothing but to `look`: no request of these stores depends on another object."""
        look()

    def fence(self, target: str, *, scope: str | None = None) -> None:
        """Nothing, as `take_scope`."""

    def stat(self, path: str) -> FileInfo | None:
        try:
            return _file_info(self._request("look at the file", path, self._clients.single.head))
        except NotFoundError:
            return None

    def read(self, path: str) -> bytes:
        return self._request("read", path, lambda key: bytes(self._clients.single.get(key).bytes()))

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        checked_range(path, start=start, length=length)
        if length == 0:
            self._size(path)
            return b""
        try:
            return self._fetch_range(path, start, length)
        except NotFoundError:
            raise
        except StorageError as error:
            # Stores refuse a range behind the end, each in its own words: only the size tells that it was this.
            if error.transient or start < self._size(path):
                raise
            return b""

    def read_versioned(self, path: str) -> VersionedBytes | None:
        def fetch(key: str) -> VersionedBytes:
            result = self._clients.single.get(key)
            return VersionedBytes(bytes(result.bytes()), _version(result.meta))

        try:
            return self._request("read", path, fetch)
        except NotFoundError:
            return None

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        # One request, however large: it is repeated as a whole or not at all.
        try:
            self._request("write", path, lambda key: self._clients.single.put(key, data, use_multipart=False))
        except NotFoundError as error:
            raise self._no_bucket(path) from error

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        return self._put_conditionally(path, data, mode="create", expected=None) is not None

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        return self._put_conditionally(path, data, mode=_update_mode(version), expected=version)

    def delete(self, path: str, *, scope: str | None = None) -> None:
        with suppress(NotFoundError):
            self._request("delete", path, self._clients.single.delete)

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        remaining = (checked_path(path) for path in paths)
        while batch := list(islice(remaining, _DELETE_BATCH)):
            try:
                self._request("delete", batch[0], self._batch_deleter(batch))
            except NotFoundError:
                # Some stores stop at the first object that is gone already.
                self._runtime.threads.map(self.delete, batch, width=_DELETE_WIDTH)

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        self.delete_many(info.path for info in self.walk(prefix))

    def list_files(self, directory: str) -> list[FileInfo]:
        prefix = child_prefix(directory)
        found = (_file_info(meta) for meta in self._list(directory)["objects"])
        return sorted((info for info in found if info.path.startswith(prefix)), key=lambda info: info.path)

    def list_names(self, directory: str) -> list[str]:
        return [info.name for info in self.list_files(directory)]

    def list_directories(self, directory: str) -> list[str]:
        return sorted(prefix.rsplit("/", 1)[-1] for prefix in self._list(directory)["common_prefixes"])

    def walk(self, directory: str) -> Iterator[FileInfo]:
        prefix = child_prefix(directory)
        held: FileInfo | None = None
        for info in self._list_deep(directory):
            if held is not None and not info.path.startswith(f"{held.path}/"):
                yield held
            held = None
            if not info.path.startswith(prefix):
                continue
            if info.size == 0:
                held = info  # a directory mark if something follows below it
            else:
                yield info
        if held is not None:
            yield held

    def open_input(self, path: str) -> BinaryIO:
        size, tail = self._tail(path)

        def fetch(ranges: list[tuple[int, int]]) -> list[bytes]:
            return self._runtime.threads.map(lambda part: self._fetch_range(path, *part), ranges, width=_FETCH_WIDTH)

        return cast(BinaryIO, pa.PythonFile(ObjectInput(fetch, size=size, tail=tail), mode="r"))

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        location = self._location(path)
        with translated(action="write", location=location):
            _refuse_after_fork()
            writer = obstore.open_writer(
                self._clients.streaming, path, buffer_size=_PART_BYTES, max_concurrency=_PARTS_IN_FLIGHT
            )
        return publishing_output(writer, guard=lambda: translated(action="write", location=location))

    def _location(self, path: str) -> str:
        return f"{self._spec.uri}/{checked_path(path)}"

    def _request(self, action: str, path: str, send: Callable[[str], T]) -> T:
        """What `send` returns for the object's key, trying again while the store or the network is at fault."""
        location = self._location(path)
        _refuse_after_fork()

        def attempt() -> T:
            with translated(action=action, location=location):
                return send(path)

        return retry_transient(attempt, policy=self._retry, runtime=self._runtime)

    def _batch_deleter(self, batch: list[str]) -> Callable[[str], None]:
        def send(_: str) -> None:
            self._clients.single.delete(batch)

        return send

    def _fetch_range(self, path: str, start: int, length: int) -> bytes:
        client = self._clients.single
        return self._request("read", path, lambda key: bytes(client.get_range(key, start=start, length=length)))

    def _tail(self, path: str) -> tuple[int, bytes]:
        """Size and last bytes of an object, in one request where the store can do that."""

        def fetch(key: str) -> tuple[int, bytes]:
            result = self._clients.single.get(key, options={"range": {"suffix": _TAIL_BYTES}})
            return int(result.meta["size"]), bytes(result.bytes())

        try:
            return self._request("read", path, fetch)
        except NotFoundError:
            raise
        except StorageError as error:
            if error.transient:
                raise
        # Empty objects have no last bytes, and Azure counts from the start only.
        size = self._size(path)
        length = min(_TAIL_BYTES, size)
        return size, self._fetch_range(path, size - length, length) if length else b""

    def _size(self, path: str) -> int:
        return _file_info(self._request("look at the file", path, self._clients.single.head)).size

    def _list(self, directory: str) -> Any:
        checked_directory(directory)
        return self._listing(directory, lambda: self._clients.streaming.list_with_delimiter(directory or None))

    def _list_deep(self, directory: str) -> Iterator[FileInfo]:
        checked_directory(directory)
        stream = self._clients.streaming.list(directory or None, chunk_size=_LIST_CHUNK)
        while True:
            chunk = self._listing(directory, lambda: next(stream, None))
            if chunk is None:
                return
            yield from map(_file_info, chunk)

    def _listing(self, directory: str, fetch: Callable[[], T]) -> T:
        # The streaming client retries each page by itself, which keeps the place in a long listing.
        _refuse_after_fork()
        with translated(action="list", location=f"{self._spec.uri}/{directory}"):
            return fetch()

    def _put_conditionally(self, path: str, data: bytes, *, mode: Any, expected: str | None) -> str | None:
        """The new version, or None if refused. A transient `StorageError` here means that nobody can tell."""
        location = self._location(path)
        _refuse_after_fork()
        mark = self._runtime.ids.uuid()
        doubt: StorageError | None = None
        for delay_s in [*retry_delays_s(self._retry, self._runtime), 0.0]:
            try:
                version = self._put_once(path, data, mode=mode, mark=mark)
            except StorageError as error:
                if not error.transient and doubt is None:
                    raise
                doubt = error
                self._runtime.clock.sleep(delay_s)
                continue
            if version is not None or doubt is None:
                return version
            break
        if doubt is None:
            raise AssertionError(f"{location}: a conditional write ended without an outcome")
        return self._settle(path, mark=mark, expected=expected, doubt=doubt)

    def _put_once(self, path: str, data: bytes, *, mode: Any, mark: str) -> str | None:
        location = self._location(path)
        with translated(action="write", location=location):
            try:
                return _version(self._clients.single.put(path, data, mode=mode, attributes={_MARK: mark}))
            except (obs.AlreadyExistsError, obs.PreconditionError, obs.NotModifiedError) as error:
                if is_conflict_in_flight(error):
                    raise
                return None
            except FileNotFoundError as error:
                raise self._no_bucket(path) from error

    def _settle(self, path: str, *, mark: str, expected: str | None, doubt: StorageError) -> str | None:
        """After a lost answer: whose object is there?"""

        def look(key: str) -> tuple[str | None, str]:
            result = self._clients.single.get(key, options={"head": True})
            return result.attributes.get(_MARK), _version(result.meta)

        try:
            found_mark, version = self._request("look at the file", path, look)
        except NotFoundError:
            raise doubt from None
        if found_mark == mark:
            return version
        if version == expected:
            raise doubt
        return None

    def _no_bucket(self, path: str) -> StorageError:
        location = self._location(path)
        return object_fault(FileNotFoundError("NoSuchBucket"), action="write", location=location)


def _refuse_after_fork() -> None:
    """The client's threads do not survive a fork, and a request in the child would wait for ever."""
    process = os.getpid()
    if not _users:
        _users.add(process)
    if process not in _users:
        raise InvalidRequestError(
            "This process was forked from one that had opened an object store, and cannot use it. "
            "Start worker processes with the `spawn` method."
        )


def _file_info(meta: Any) -> FileInfo:
    return FileInfo(path=meta["path"], size=meta["size"], modified_ms=int(meta["last_modified"].timestamp() * 1000))


def _version(meta: Any) -> str:
    return json.dumps([meta.get("e_tag"), meta.get("version")])


def _update_mode(version: str) -> dict[str, str]:
    e_tag, generation = json.loads(version)
    return {name: value for name, value in (("e_tag", e_tag), ("version", generation)) if value is not None}
