"""The simulator finds bugs on purpose, here a few that show soon; `tests.support.simulated_bugs` looks for all."""

from __future__ import annotations

import pytest

from tablekeeper.testing import play
from tests.support.bugs_on_purpose import BUGS
from tests.support.simulated_bugs import MOST_SEEDS, PAGE, draw, find_seed, load_seeds

__all__: list[str] = []

FEW_SEEDS = 40
SOON = (
    "tasks do not look at their heartbeat",
    "a stream asks for its batch before the lock only",
    "every heartbeat counts as over",
    "files of an earlier attempt are forgotten",
    "the completion time is taken before the lock",
    "a clean passes over the metadata table",
)


@pytest.mark.parametrize("name", SOON)
def test_a_bug_on_purpose_is_caught_and_without_it_nothing_is(name: str) -> None:
    caught = find_seed(BUGS[name], FEW_SEEDS)
    assert caught is not None
    assert play(draw(BUGS[name], caught[0])).complaints == []


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_on_purpose_can_be_made_and_unmade(name: str) -> None:
    history = draw(BUGS[name], 0)
    with BUGS[name].make():
        assert draw(BUGS[name], 0) == history


def test_the_page_has_every_bug_that_was_caught_and_its_seeds() -> None:
    page, seeds = PAGE.read_text("utf-8"), load_seeds()
    assert set(seeds) <= set(BUGS)
    assert all(seed < MOST_SEEDS for seed, _ in seeds.values())
    assert [name for name, (seed, by) in seeds.items() if f"{seed + 1} | {by} |" not in page or name not in page] == []
