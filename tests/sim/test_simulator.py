"""The simulator itself: it repeats a run exactly, sees what must not happen, and makes it small enough to read.

The histories in `histories/` are kept because they failed once; each is named after what was wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree as ET

import pytest

from tablekeeper.testing import (
    JOBS,
    Actor,
    Campaign,
    Fault,
    FaultKind,
    History,
    Job,
    Outcome,
    Shape,
    draw_history,
    draw_timeline,
    job,
    play,
    shrink,
    trace_lines,
)
from tablekeeper.testing.loop import Life, Loop, TooLongError
from tablekeeper.testing.process import Process
from tablekeeper.testing.worker import Worker

__all__: list[str] = []

SEEDS = (7, 19, 26)

ASLEEP_IN_COMMIT = History(
    Shape("cow"),
    (Actor("writer-1", (Job("upsert"),)), Actor("writer-2", (Job("upsert", seed=1, after_s=400.0),))),
    (Fault("writer-1", 0, 40, FaultKind.SLEEP_BEFORE, 1_500.0),),
)


def fingerprint(outcome: Outcome) -> str:
    return sha256("\n".join(trace_lines(outcome)).encode()).hexdigest()


def test_a_seed_gives_the_same_run_call_by_call_in_every_process() -> None:
    here = [fingerprint(play(draw_history(seed))) for seed in SEEDS]
    assert here == [fingerprint(play(draw_history(seed))) for seed in SEEDS]
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.sim.test_simulator import SEEDS, draw_history, fingerprint, play\n"
        "print(*[fingerprint(play(draw_history(seed))) for seed in SEEDS])"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "12345", "PATH": "", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert elsewhere.stdout.split() == here
    assert len(set(here)) == len(SEEDS)


def test_the_turns_that_were_taken_bring_the_same_run_back_from_json() -> None:
    outcome = play(draw_history(SEEDS[0]))
    assert outcome.history.turns
    kept = History.from_json(outcome.history.to_json())
    assert kept == outcome.history
    assert fingerprint(play(kept)) == fingerprint(outcome)


@pytest.mark.parametrize("first", [0, 10])
def test_drawn_histories_hold(first: int) -> None:
    campaign = Campaign(is_guided=True)
    assert [(found.seed, found.outcome.complaints) for found in campaign.run(range(first, first + 10))] == []
    assert campaign.histories == 10
    assert campaign.counts["write committed"] > 10


def test_histories_that_failed_once_hold() -> None:
    """Each is named after what was wrong."""
    kept = sorted(Path(__file__).with_name("histories").glob("*.json"))
    assert kept
    complaints = {path.stem: play(History.from_json(path.read_text("utf-8"))).complaints for path in kept}
    assert {name: found for name, found in complaints.items() if found} == {}


def test_a_failure_is_shrunk_traced_and_drawn() -> None:
    crowd = Actor("reader-3", (Job("read"), Job("read", after_s=1.0)))
    history = History(ASLEEP_IN_COMMIT.shape, (*ASLEEP_IN_COMMIT.actors, crowd), ASLEEP_IN_COMMIT.faults)
    assert play(history).complaints == []
    # Whatever a caller is told counts as a failure: who slept in its commit is told so.
    with patch.object(Worker, "told", lambda self, error, what, may=(): self.story.complain("told", what)):
        failed = play(history)
        assert failed.complaints
        smallest = shrink(failed, most_plays=60)
    assert smallest.complaints[0].startswith("told")
    assert smallest.history.size < failed.history.size
    assert {actor.name for actor in smallest.history.actors} <= {"writer-1", "writer-2"}
    trace = "\n".join(trace_lines(smallest))
    assert "put_if_absent .hoodie/timeline/" in trace
    assert "! sleep before" in trace
    drawing = ET.fromstring(draw_timeline(smallest))
    assert drawing.tag.endswith("svg")
    assert "writer-1" in "".join(drawing.itertext())


def test_a_process_that_dies_is_started_again_for_its_next_job() -> None:
    actor = Actor("writer-1", (Job("upsert"), Job("upsert", seed=1)))
    outcome = play(History(Shape("cow"), (actor,), (Fault("writer-1", 0, 30, FaultKind.DEATH_AFTER),)))
    assert outcome.complaints == []
    processes = {event.process for event in outcome.story.events}
    assert {"writer-1", "writer-1/again-1"} <= processes
    assert outcome.story.writes["writer-1-0"].said == ""
    assert outcome.story.writes["writer-1-1"].said == "committed"


def test_a_job_of_somebody_else_takes_part() -> None:
    with patch.dict(JOBS):

        @job("counter", calls=5)
        def count_rows(worker: Worker) -> None:
            worker.story.counts[f"{worker.table.read().num_rows} rows"] += 1

        outcome = play(History(Shape("cow"), (Actor("counter-1", (Job("count_rows"),)),)))
    assert outcome.story.counts["5 rows"] == 1


def test_who_waits_for_ever_is_told_so() -> None:
    loop = Loop(lambda ready: ready[0])
    loop.spawn(Life("stuck"), "stuck", lambda: loop.park(until=lambda: False), is_main=True)
    with pytest.raises(TooLongError, match="nobody can go on"):
        loop.run()


def test_a_stopped_process_renews_nothing() -> None:
    loop = Loop(lambda ready: ready[0])
    process = Process(loop, "sleeper", seed=1)
    beats: list[float] = []
    process.runtime.threads.every(10.0, lambda: beats.append(loop.now_s), name="beat")

    def work() -> None:
        process.sleep(25.0)
        process.stop(100.0)
        process.sleep(15.0)

    loop.spawn(process, "sleeper", work, is_main=True)
    loop.run()
    assert [round(beat) for beat in beats] == [10, 20, 125, 135]
