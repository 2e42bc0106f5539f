"""The scenarios of the heartbeat guard, explored within small bounds; `--scenario` explores them further by hand."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tablekeeper.services.plans import execute
from tablekeeper.testing import play
from tablekeeper.testing.explore import SCENARIOS, explore

__all__: list[str] = []


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenarios_of_the_heartbeat_guard_hold_in_every_order_that_is_tried(name: str) -> None:
    found = explore(SCENARIOS[name], preemptions=1, faults=1, stride=17, most_runs=6)
    assert [outcome.complaints for outcome in found.failures] == []
    assert found.runs >= 6 or found.different + found.pruned == found.runs
    assert found.different > 2


def test_a_mutable_plan_that_was_begun_is_refused_to_both() -> None:
    outcome = play(SCENARIOS["mutable C: two execute a plan that was begun"].history())
    assert outcome.story.counts["compaction FencedError"] == 2
    assert outcome.complaints == []


def test_a_guard_that_lets_two_in_is_found_by_exploring() -> None:
    with patch.object(execute, "refuse_held", lambda *_: None):
        found = explore(SCENARIOS["immutable A: two execute a new plan"], preemptions=1, faults=0, most_runs=40)
    assert found.failures
