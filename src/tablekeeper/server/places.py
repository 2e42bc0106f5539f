"""Which places the service may access: a list of directories and object-store prefixes.

The path in a request is not trusted: it is brought into canonical form, links are followed, and the result must be
inside an allowed place. A table is identified by its real location, so that a link cannot make two tables of one, or
lead out of the prefixes that a token is limited to. The check is made when a table is registered and again before every
job, because a folder can be replaced by a link in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.storage.protocol import canonical_uri, local_path

__all__ = ["AllowedPlaces", "ForbiddenPlaceError"]

_FILE = "file://"
_MOST_CHARACTERS = 2000


class ForbiddenPlaceError(TablekeeperError):
    """The path is outside the places that the service was started with: ask its operator to allow it."""


class AllowedPlaces:
    """The places given with `--allow`. Without any, every path is refused."""

    def __init__(self, places: Iterable[str]) -> None:
        self._places = tuple(canonical_uri(place) for place in places)

    def __str__(self) -> str:
        return ", ".join(self._places) or "none"

    def missing(self) -> tuple[str, ...]:
        """Places on this machine that do not exist (yet): most likely a typing error."""
        return tuple(each for each in self._places if each.startswith(_FILE) and not local_path(each).is_dir())

    def canonical(self, path: str) -> str:
        """The real location of `path`, in canonical form; `ForbiddenPlaceError` if it is in none of the places."""
        if len(path) > _MOST_CHARACTERS or any(ord(character) < 32 for character in path):
            raise InvalidRequestError(f"a base path is a text of at most {_MOST_CHARACTERS} printable characters")
        if "://" not in path and not path.startswith(("/", "file:/")):
            raise InvalidRequestError(f"base path {path!r}: give an absolute path or a URI such as s3://bucket/table")
        uri = canonical_uri(path)
        for place in self._places:
            found = _below(uri, place)
            if found is not None:
                return found
        raise ForbiddenPlaceError(
            f"{uri} is not inside of a place that this service may touch. Its operator can allow more with --allow."
        )

    def recheck(self, base_path: str) -> None:
        """Refuse a registered path that is no longer allowed, or that a link now leads elsewhere."""
        found, spelled = self.canonical(base_path), canonical_uri(base_path)
        if found != spelled and not any(_below(spelled, place) == spelled for place in self._places):
            raise ForbiddenPlaceError(f"{base_path} is a link to {found} by now: register that place instead")


def _below(uri: str, place: str) -> str | None:
    """`uri` as a path below `place` without links; None if it is outside."""
    if uri.startswith(_FILE) != place.startswith(_FILE):
        return None
    if not uri.startswith(_FILE):
        return uri if uri == place or uri.startswith(f"{place}/") else None
    try:
        real, root = _real(uri), _real(place)
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InvalidRequestError(f"{uri}: cannot follow the links of this path ({error})") from error
    return canonical_uri(local_path(place) / real.relative_to(root)) if real.is_relative_to(root) else None


def _real(uri: str) -> Path:
    return local_path(uri).resolve()
