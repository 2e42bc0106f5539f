"""Paths inside a store and the URIs of stores.

A path inside a store is relative and plain: no leading or trailing `/`, no empty, `.` or `..` part. Paths
also come out of table metadata that others wrote, so anything else is refused before it reaches a store.

A store's URI is canonical, so that two spellings of one place compare equal. Local paths are percent-encoded
in it, as `file:` URIs are; object keys are not, as nobody writes `s3:` URIs that way.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from tablekeeper.errors import InvalidRequestError
from tablekeeper.storage.protocol import StorageSpec

__all__ = [
    "OBJECT_SCHEMES",
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
