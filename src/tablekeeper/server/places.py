"""Which places the service may touch: a list of directories and object-store prefixes.

A request names a path, and a path of a request is never trusted: it is brought into its one canonical spelling, links
are followed, and what remains has to lie inside of an allowed place. The check is made when a table is registered and
again before every job, because a link can be changed in between.
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
    """The path lies outside of the places that the service was started with: ask whoever runs it to allow it."""


class AllowedPlaces:
    """The places given with `--allow`. Without any, every path is refused."""

    def __init__(self, places: Iterable[str]) -> None:
        self._places = tuple(canonical_uri(place) for place in places)

    def __str__(self) -> str:
        return ", ".join(self._places) or "none"

    def canonical(self, path: str) -> str:
        """The one spelling of `path`; `ForbiddenPlaceError` if it leads out of the allowed places."""
        if len(path) > _MOST_CHARACTERS or any(ord(character) < 32 for character in path):
            raise InvalidRequestError(f"a base path is a text of at most {_MOST_CHARACTERS} printable characters")
        if "://" not in path and not path.startswith(("/", "file:/")):
            raise InvalidRequestError(f"base path {path!r}: give an absolute path or a URI such as s3://bucket/table")
        uri = canonical_uri(path)
        if not any(_lies_inside(uri, place) for place in self._places):
            raise ForbiddenPlaceError(
                f"{uri} is not inside of a place that this service may touch. "
                "Whoever runs it can allow more with --allow."
            )
        return uri

    def recheck(self, base_path: str) -> None:
        """Refuse a registered path that leads elsewhere by now: a link was changed, or the place is allowed no more."""
        self.canonical(base_path)


def _lies_inside(uri: str, place: str) -> bool:
    if uri.startswith(_FILE) != place.startswith(_FILE):
        return False
    if not uri.startswith(_FILE):
        return uri == place or uri.startswith(f"{place}/")
    try:
        return _real(uri).is_relative_to(_real(place))
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InvalidRequestError(f"{uri}: cannot follow the links of this path ({error})") from error


def _real(uri: str) -> Path:
    return local_path(uri).resolve()
