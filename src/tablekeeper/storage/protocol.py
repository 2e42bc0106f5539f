"""The store a table lives in, as the rest of the package sees it.

Three properties carry everything that is built on top, and the contract suite checks them for
every implementation:

- **Atomic publish.** An object appears whole or not at all, under `put`, `put_if_absent`,
  `replace` and when an output of `open_output` is closed. An output that is left by an
  exception, or whose process dies, publishes nothing.
- **One winner.** Of any number of concurrent `put_if_absent` of one path, exactly one returns True;
  of concurrent `replace` with the same version, at most one succeeds.
- **Read your writes.** Once a write has returned, reads and listings see it.

Refused preconditions are return values, not exceptions. Faults are `StorageError`s; those that
may pass by themselves have been retried, with a bound, before they are raised. A `StorageError` from
`put_if_absent` or `replace` whose `transient` is true leaves open whether the write was executed.

A version says when an object was replaced, not by whom: a store may give equal contents the same version,
so contents that processes compete for must differ between them.

A **scope** is a right to change things that can be taken away. A process that works on something that may become
another's (an attempt at a write, the table lock) opens one and names it in every changing call; a process that takes
the work over fences it first. From then on a change through it fails with `FencedError`, also one that was under way,
such as an output that is closed later. Stores for which `has_scopes` is true do this exactly, with nothing in between.
Object stores have no such step: they pass over scopes, and who works there looks for itself, before and after.

A path inside a store is relative and plain: no leading or trailing `/`, no empty, `.` or `..` part; `""` is the root.
Paths also come out of table metadata that others wrote, so anything else is refused before it reaches a store.

A store's URI is canonical, so that two spellings of one place compare equal. Local paths are percent-encoded
in it, as `file:` URIs are; object keys are not, as nobody writes `s3:` URIs that way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote, unquote

from tablekeeper.errors import InvalidRequestError

__all__ = [
    "OBJECT_SCHEMES",
    "FileInfo",
    "Storage",
    "StorageSpec",
    "VersionedBytes",
    "canonical_uri",
    "checked_directory",
    "checked_path",
    "checked_range",
    "child_prefix",
    "hadoop_path",
    "local_path",
]


OBJECT_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "abfss",
    "abfss": "abfss",
}
"""URI schemes of object stores, and the canonical one of each."""

_HADOOP_SCHEMES = {"s3": "s3a"}
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?P<slashes>/*)")


def checked_path(path: str) -> str:
    """`path` itself if it is a legal object path; `InvalidRequestError` if it could point anywhere else."""
    if not path or "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise InvalidRequestError(
            f"{path!r} is not a path inside a store. Use a relative path with `/` and without empty, `.` or `..` parts."
        )
    return path


def checked_directory(directory: str) -> str:
    """As `checked_path`, with `""` for the root."""
    return checked_path(directory) if directory else directory


def checked_range(path: str, *, start: int, length: int) -> None:
    """Refuse a range that no object can have."""
    if start < 0 or length < 0:
        raise InvalidRequestError(f"{path}: cannot read {length} bytes from {start} on. Both must be 0 or more.")


def child_prefix(directory: str) -> str:
    """What the paths of everything below `directory` begin with."""
    return f"{directory}/" if directory else ""


def canonical_uri(location: str | os.PathLike[str]) -> str:
    """The one spelling of a store's place: `file:///…`, `memory://…`, `s3://…`, `gs://…`, `abfss://…`, `az://…`."""
    text = _text(location)
    found = _SCHEME.match(text)
    if found is None or isinstance(location, os.PathLike):
        return _file_uri(_home_expanded(text))
    scheme, rest = found.group(1).lower(), text[found.end() :]
    if scheme == "file":
        return _file_uri(Path(unquote(_file_rest(text, slashes=len(found.group("slashes")), rest=rest))))
    if len(found.group("slashes")) != 1:
        raise InvalidRequestError(f"{text!r} names no store. Write it as {scheme}://name/path.")
    if scheme == "memory":
        return f"memory://{_collapsed(text, rest)}"
    if scheme not in OBJECT_SCHEMES:
        known = ", ".join(["file", "memory", *OBJECT_SCHEMES])
        raise InvalidRequestError(f"{text!r}: no store for the scheme {scheme!r}. Known schemes: {known}.")
    return f"{OBJECT_SCHEMES[scheme]}://{_collapsed(text, rest)}"


def _text(location: object) -> str:
    """The path or URI as text that a file system and a store can take."""
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text or "%00" in text or not _is_unicode(text):
        raise InvalidRequestError(f"{location!r} is not a path: give a directory, or a URI such as s3://bucket/table.")
    if not text.strip():
        raise InvalidRequestError(
            "The path of the table is empty. Name a directory or a URI such as s3://bucket/table."
        )
    return text


def _is_unicode(text: str) -> bool:
    try:
        # As file names have it: bytes that are not UTF-8 are names too, lone halves of characters are not.
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _home_expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InvalidRequestError(f"{text!r}: {error}") from error


def local_path(uri: str) -> Path:
    """The path of a canonical `file:` URI."""
    return Path(unquote(uri.removeprefix("file://")))


def hadoop_path(spec: StorageSpec, path: str = "") -> str:
    """An object of the store as Spark and Hadoop take it: local paths unencoded, S3 as `s3a`."""
    scheme, _, rest = spec.uri.partition("://")
    root = f"file://{local_path(spec.uri)}" if scheme == "file" else f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{rest}"
    return f"{root.rstrip('/')}/{path}" if path else root


def _file_uri(path: Path) -> str:
    # Only `normpath` removes `..` without following links, so that a path keeps the name its owner gave it.
    # A path may begin with two slashes, which mean the same as one here.
    return "file:///" + quote(os.fsencode(os.path.normpath(path.absolute())).lstrip(b"/"))


def _file_rest(text: str, *, slashes: int, rest: str) -> str:
    """`file:/a`, `file:///a` and `file://localhost/a` are local; any other host is not."""
    if slashes != 1:
        return f"/{rest}"
    host, _, path = rest.partition("/")
    if host != "localhost":
        raise InvalidRequestError(f"{text!r} names the host {host!r}. Write local files as file:///absolute/path.")
    return f"/{path}"


def _collapsed(text: str, rest: str) -> str:
    """`bucket/path` with repeated and trailing slashes removed, refusing a missing bucket and dots."""
    parts = [part for part in rest.split("/") if part]
    if not parts or rest.startswith("/") or any(part in {".", ".."} for part in parts):
        raise InvalidRequestError(f"{text!r} names no store. Write it as scheme://name/path, without `.` and `..`.")
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """How to open a store again elsewhere: small, picklable, sent along with tasks.

    `uri` is canonical: `file:///abs/path`, `memory://name/path`, `s3://bucket/path`, …
    `options` may hold credentials, and is therefore not shown.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One object: its path relative to the store's root, bytes, and last change in epoch milliseconds."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class VersionedBytes:
    """An object's bytes with the version token that `replace` takes."""

    data: bytes
    version: str


class Storage(Protocol):
    """A flat, consistent object store. Implementations are safe to share between threads."""

    @property
    def spec(self) -> StorageSpec:
        """What `open_storage` needs to open this store again."""
        ...

    def stat(self, path: str) -> FileInfo | None:
        """The object's facts, or None if there is none. A directory is not an object."""
        ...

    def read(self, path: str) -> bytes:
        """All bytes; `NotFoundError` if there is no such object."""
        ...

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)`, shorter only at the end of the object."""
        ...

    def read_versioned(self, path: str) -> VersionedBytes | None:
        """Bytes and version for a later `replace`; None if there is no such object."""
        ...

    @property
    def has_scopes(self) -> bool:
        """Whether a fenced scope changes nothing any more, exactly; False where scopes are passed over."""
        ...

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        """Open the scopes `group/name` for each of the names, and fence all others of the group.

        `look` raises if the caller may not take them any more. It is asked before any other scope is fenced, and those
        who take the group after it fence ours: who is late fences nobody.
        """
        ...

    def fence(self, target: str, *, scope: str | None = None) -> None:
        """Take away the right of the scope `target`, and of all scopes below it. Unknown ones have none anyway."""
        ...

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        """Publish, replacing what was there. Here and below: through `scope`, `FencedError` if that was fenced."""
        ...

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        """Publish only if nothing is there; False if something is."""
        ...

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        """Publish only if the object still has `version`; the new version, or None if it has not."""
        ...

    def delete(self, path: str, *, scope: str | None = None) -> None:
        """Remove the object. Nothing there is no error."""
        ...

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        """Remove objects, in parallel with bounded concurrency."""
        ...

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        """Remove everything below the directory `prefix`, and itself."""
        ...

    def list_files(self, directory: str) -> list[FileInfo]:
        """Objects directly in `directory`, by name. A missing directory is an empty one."""
        ...

    def list_names(self, directory: str) -> list[str]:
        """Names (not paths) of what `list_files` lists, sorted. Cheaper where sizes and times have to be asked for."""
        ...

    def list_directories(self, directory: str) -> list[str]:
        """Names (not paths) of the directories directly in `directory`, sorted.

        A file system may name a directory that holds no objects; other stores have no such thing.
        """
        ...

    def walk(self, directory: str) -> Iterator[FileInfo]:
        """Every object at any depth below `directory`."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """A seekable binary stream, in fact a pyarrow `NativeFile`. Close it after use."""
        ...

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        """A binary stream that publishes `path` when left normally and nothing when left by an exception.

        It is a pyarrow `NativeFile`, and replaces what was there, as `put` does.
        """
        ...
