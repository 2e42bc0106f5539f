"""One run: a history becomes what happened."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from tablekeeper.storage.memory import MemoryStorage, forget_memory
from tablekeeper.testing.chance import chance_of
from tablekeeper.testing.choosing import Chooser, choose_by_seed, choose_by_turns
from tablekeeper.testing.history import Actor, History
from tablekeeper.testing.java_writer import java_insert, java_upsert
from tablekeeper.testing.jobs import JOBS
from tablekeeper.testing.loop import Loop, TooLongError
from tablekeeper.testing.process import Process
from tablekeeper.testing.record_index import record_index
from tablekeeper.testing.start import FIRST_WRITES, load_start
from tablekeeper.testing.story import NAME_KEY, Commit, Story, Write, puts
from tablekeeper.testing.verdict import judge, tidy_up
from tablekeeper.testing.watch import Watch
from tablekeeper.testing.worker import Worker, open_table
from tablekeeper.testing.world import SPACE, URI, World
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tablekeeper.timeline.properties_file import load_table_config

__all__ = ["Outcome", "java_insert", "java_upsert", "play", "record_index"]


@dataclass(frozen=True)
class Outcome:
    """What came of a history. `history` has the turns that were taken, so that it can be changed and played again."""

    history: History
    story: Story
    steps: int
    coverage: frozenset[int] = field(repr=False)

    @property
    def complaints(self) -> list[str]:
        return self.story.complaints


def play(history: History, *, chooser: Chooser | None = None) -> Outcome:
    """Let it happen, tidy up, and judge. The same history gives the same outcome, always.

    `chooser` chooses instead of what the history says.
    """
    logger = logging.getLogger("tablekeeper")
    level, logger.level = logger.level, logging.CRITICAL
    try:
        return _Run(history, chooser).play()
    finally:
        logger.setLevel(level)
        forget_memory(SPACE)


class _Run:
    def __init__(self, history: History, chooser: Chooser | None) -> None:
        forget_memory(SPACE)
        self._history = history
        turns = history.turns
        seeded = choose_by_seed(history.schedule) if turns is None else choose_by_turns(turns)
        self._chooser = chooser or seeded
        self._is_preparing = True
        self._loop = Loop(lambda ready: ready[0] if self._is_preparing else self._chooser(ready))
        self._story = Story()
        start = load_start(history.shape)
        self._loop.now_s = start.now_s
        self._watch = Watch(history, self._story, self._loop, URI)
        self._world = World(history, loop=self._loop, watch=self._watch, story=self._story)
        store = MemoryStorage(URI, runtime=Process(self._loop, "start", seed="copy").runtime)
        for path, content in start.files.items():
            store.put(path, content)
        self._note_first_writes()

    def play(self) -> Outcome:
        if self._has_happened() and self._is_tidy():
            judge(self._watch)
        taken = replace(self._history, turns=tuple(self._chooser.turns))
        return Outcome(taken, self._story, self._loop.steps, frozenset(self._watch.coverage))

    def _has_happened(self) -> bool:
        for actor in self._history.before:
            self._begin(actor, 0)
            if not self._go():
                return False
        self._is_preparing = False
        for actor in self._history.actors:
            self._begin(actor, 0)
        return self._go()

    def _is_tidy(self) -> bool:
        caretaker = self._world.process("caretaker")
        self._watch.post_of(caretaker).doing = "tidy up, clean and archive"
        self._world.start(caretaker, lambda: tidy_up(self._worker(Actor("caretaker", ()), caretaker)))
        return self._go()

    def _go(self) -> bool:
        """Run to the end; False if that cannot be."""
        try:
            self._loop.run()
        except TooLongError as error:
            self._story.complain("bounded", str(error))
            return False
        for fiber, failure in self._loop.failed:
            self._world.broke(fiber.name, failure)
        return not any(complaint.startswith("broken") for complaint in self._story.complaints)

    def _begin(self, actor: Actor, job: int, incarnation: int = 0) -> None:
        """A process of the actor, from this job on."""
        name = actor.name if incarnation == 0 else f"{actor.name}/again-{incarnation}"
        process = self._world.process(
            name, actor=actor.name, skew_s=actor.skew_s, parallel=actor.parallel, host=actor.host
        )
        self._world.start(process, lambda: self._live(actor, process, job, incarnation))

    def _live(self, actor: Actor, process: Process, first: int, incarnation: int) -> None:
        post = self._watch.post_of(process)
        post.job = first
        try:
            worker = self._worker(actor, process)
            for number in range(first, len(actor.jobs)):
                job = actor.jobs[number]
                post.job, post.doing = number, job.kind
                post.calls.clear()
                worker.name, worker.chance = f"{actor.name}-{number}", chance_of("job", job.kind, job.seed)
                process.sleep(job.after_s)
                self._watch.remark(process, f"begins {job.kind}")
                JOBS[job.kind].run(worker)
        finally:
            # The next process of the actor goes on with its next job.
            if process.is_dead and post.job + 1 < len(actor.jobs) and not self._is_over():
                self._begin(actor, post.job + 1, incarnation + 1)

    def _worker(self, actor: Actor, process: Process) -> Worker:
        storage = self._world.storage_of(process)
        table = open_table(storage, process, options_in=self._watch.storage, repeats_tasks=actor.repeats_tasks)
        worker = Worker(
            table,
            storage,
            process=process,
            world=self._world,
            chance=chance_of("worker", actor.name),
            name=actor.name,
        )
        self._watch.post_of(process).worker = worker
        return worker

    def _is_over(self) -> bool:
        return self._story.complaints != []

    def _note_first_writes(self) -> None:
        storage = self._watch.storage
        config = load_table_config(storage)
        for instant in load_timeline(storage, config).completed_writes:
            name = load_commit_metadata(storage, config, instant).extra[NAME_KEY]
            effect = puts(FIRST_WRITES[name])
            time = instant.requested_at.value
            self._story.writes[name] = Write(name, effect, "committed", time)
            completed = "" if instant.completed_at is None else instant.completed_at.value
            self._story.commits[time] = Commit(time, completed, name, effect)
        self._story.states[:] = [self._story.rows()]
