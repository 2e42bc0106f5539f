"""What scenarios share: tables in memory that are gone when the test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.recovery_world import World, worlds


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    """Makes empty tables: `make(table_type="mor", metadata=True)`."""
    with worlds() as new:
        yield new
