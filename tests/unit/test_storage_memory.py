"""What only the in-memory store does: names, a clock of its own, order."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.storage import MemoryStorage, forget_memory
from tests.support.fake_runtime import fake_runtime


def test_stores_of_one_name_share_their_objects_and_others_do_not() -> None:
    name = str(uuid4())
    whole, part, other = (MemoryStorage(f"memory://{place}") for place in (name, f"{name}/p", f"{name}x"))
    part.put("a", b"1")
    assert whole.read("p/a") == b"1"
    assert other.stat("p/a") is None
    forget_memory(name)
    assert whole.stat("p/a") is None


def test_times_come_from_the_clock_of_the_writer() -> None:
    runtime, clock = fake_runtime(now_ms=5_000)
    store = MemoryStorage(f"memory://{uuid4()}", runtime=runtime)
    store.put("a", b"")
    clock.advance(2)
    store.put_if_absent("b", b"")
    assert [info.modified_ms for info in store.list_files("")] == [5_000, 7_000]


def test_a_version_changes_even_if_the_bytes_stay() -> None:
    store = MemoryStorage(f"memory://{uuid4()}")
    store.put("a", b"same")
    first = store.read_versioned("a")
    assert first is not None
    second = store.replace("a", b"same", version=first.version)
    assert second != first.version
    assert store.replace("a", b"same", version=first.version) is None


def test_only_memory_uris_are_taken() -> None:
    with pytest.raises(InvalidRequestError, match="memory://name/path"):
        MemoryStorage("/a/b")
