"""The registry of deliberate bugs, and what they are made with.

`@bug` names one, says which theme of histories is about it, and on which tables it can show. To add a bug, write a
function that returns the context in which the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tablekeeper.testing import Shape

__all__ = [
    "BUCKETS",
    "BUGS",
    "METADATA",
    "MOR",
    "OBJECTS",
    "RECORD_INDEX",
    "SIMPLE",
    "SMALL_FILES",
    "Bug",
    "Patch",
    "both",
    "bug",
    "nothing",
    "says",
    "without_lock",
]

OBJECTS = (Shape("mor", has_scopes=False), Shape("cow", has_scopes=False))
METADATA = (Shape("mor", metadata=True), Shape("cow", metadata=True))
MOR = (Shape("mor"),)
SIMPLE = (Shape("mor"), Shape("cow"))
RECORD_INDEX = (Shape("mor", "record"), Shape("cow", "record"))
SMALL_FILES = (Shape("mor", options="small files"),)
BUCKETS = (Shape("mor", "bucket"),)

Patch = AbstractContextManager[Any]


@dataclass(frozen=True)
class Bug:
    """One bug. `theme` and `shapes` are those of the histories that look for it."""

    name: str
    make: Callable[[], Patch]
    theme: str
    shapes: tuple[Shape, ...]
    repeats_tasks: bool


BUGS: dict[str, Bug] = {}


def bug(
    theme: str, shapes: tuple[Shape, ...] = SIMPLE, *, repeats_tasks: bool = False
) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Register a bug under the name of its function."""

    def register(make: Callable[[], Patch]) -> Callable[[], Patch]:
        name = make.__name__.replace("_", " ")
        BUGS[name] = Bug(name, make, theme, shapes, repeats_tasks)
        return make

    return register


def nothing(*_: Any, **__: Any) -> None:
    return None


def says(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


class NoLease:
    """A lock that admits everybody."""

    held_s = 0.0
    check = look = release = change_through = nothing

    def acquire(self, **_: Any) -> NoLease:
        return self

    def __enter__(self) -> NoLease:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def without_lock(module: Any, function: str) -> Patch:
    """The function works in an environment whose lock admits everybody."""
    original = getattr(module, function)

    def unlocked(first: Any, *rest: Any, **named: Any) -> Any:
        return original(replace(first, lock=NoLease()), *rest, **named)

    return patch.object(module, function, unlocked)


@contextmanager
def both(*patches: Patch) -> Iterator[None]:
    if not patches:
        yield
        return
    with patches[0], both(*patches[1:]):
        yield
