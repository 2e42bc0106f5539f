"""The management service in the simulator: a run repeats itself exactly, and whoever dies is followed by another."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tablekeeper.testing import Actor, Fault, FaultKind, History, Job, Outcome, Shape, draw_history, play
from tablekeeper.testing.themes import THEMES
from tests.sim.test_simulator import fingerprint

__all__: list[str] = []

SERVICE_THEMES = [name for name, theme in THEMES.items() if any("serve" in slot.jobs for slot in theme.slots)]
SEED = 3

INSTANCES = (Actor("one", (Job("serve", seed=1),), host="here"), Actor("two", (Job("serve", seed=2),), host="here"))
WRITER = Actor("writer", (Job("upsert"), Job("plan_firm", after_s=1.0), Job("submit_plan", after_s=1.0)))


def served(*faults: Fault) -> Outcome:
    return play(History(Shape("mor"), (*INSTANCES, WRITER), faults))


@pytest.mark.parametrize("theme", SERVICE_THEMES)
def test_drawn_histories_of_a_service_hold_and_are_the_same_again(theme: str) -> None:
    first, again = (play(draw_history(SEED, theme=theme)) for _ in range(2))
    assert first.complaints == []
    assert fingerprint(first) == fingerprint(again)
    assert any(what.startswith("service operation") for what in first.story.counts)


def test_a_plan_is_executed_by_a_worker_of_the_service_that_was_asked() -> None:
    outcome = served()
    assert outcome.complaints == []
    assert outcome.story.counts["service operation compaction completed"] >= 1
    assert any(event.process.startswith("worker-") for event in outcome.story.events)


def test_an_instance_that_dies_with_a_lease_leaves_its_operation_to_another_one() -> None:
    deaths = [Fault("one", 0, 3, FaultKind.DEATH_AFTER, among="database"), Fault("two", 0, 9, FaultKind.DEATH_AFTER)]
    outcome = served(*deaths)
    assert outcome.complaints == []
    assert {event.process for event in outcome.story.events} >= {"one", "two", "caretaker"}


def test_an_instance_that_starts_while_its_database_is_away_leaves_the_work_to_others() -> None:
    outcome = served(Fault("two", 0, 1, FaultKind.ERROR_BEFORE, among="database"))
    assert outcome.complaints == []
    assert outcome.story.counts["service did not start"] == 1
    assert outcome.story.counts["service operation compaction completed"] >= 1


def test_a_worker_that_dies_is_followed_by_another_attempt() -> None:
    outcome = served(Fault("worker", 0, 4, FaultKind.DEATH_AFTER))
    assert outcome.complaints == []
    [died] = [event.process for event in outcome.story.events if "! death after" in event.note]
    assert died == "worker-1"
    assert any(event.process == "worker-2" for event in outcome.story.events)


def test_without_the_extra_of_the_service_everything_else_can_be_played() -> None:
    program = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'sqlalchemy' else found(name, *rest)\n"
        "from tablekeeper.testing import JOBS, draw_history\n"
        "print('serve' in JOBS, draw_history(1, theme='service').actors != ())"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "True"]
