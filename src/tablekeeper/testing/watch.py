"""Sees every call of every process, keeps the trace, and checks after each change of what readers see.

What readers see changes when a completed instant appears on the timeline or leaves it. Each time the rows are read and
compared with those that follow from the commits, by a judge that takes no turns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tablekeeper.errors import TablekeeperError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.model import Action, CommitMetadata, Instant, Operation, ServiceKind, State
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.table import Table
from tablekeeper.testing.history import Fault, History
from tablekeeper.testing.loop import Call, Loop
from tablekeeper.testing.plan_watch import PlanWatch
from tablekeeper.testing.process import Process
from tablekeeper.testing.store import sort_of
from tablekeeper.testing.story import NAME_KEY, Commit, Effect, Event, Story, drops
from tablekeeper.testing.worker import Worker, open_table, rows_of
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.history import find_archived
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.timeline.timeline import decode_instant_name

__all__ = ["Post", "Watch"]

_TIMELINE = ".hoodie/timeline/"
_HEARTBEATS = ".hoodie/.heartbeat/"

_SERVICES = frozenset(kind.operation for kind in ServiceKind)


@dataclass(eq=False)
class Post:
    """What a process is doing: which job of which actor, and how many calls it has made in it, by sort."""

    actor: str
    worker: Worker | None = None
    doing: str = ""
    job: int = 0
    calls: Counter[str] = field(default_factory=Counter)


class Watch:
    """The witness of one run."""

    def __init__(self, history: History, story: Story, loop: Loop, uri: str) -> None:
        self.story = story
        self.posts: dict[str, Post] = {}
        self.shared: dict[object, Any] = {}
        self.coverage: set[int] = set()
        self._faults = {(fault.actor, fault.job, fault.among, fault.call): fault for fault in history.faults}
        self.has_record_index = history.shape.index == "record"
        self._loop = loop
        self._checks_steps = history.shape.has_scopes
        self.is_calm = not history.faults and not any(actor.skew_s for actor in history.actors)
        self._judge = Process(Loop(lambda ready: ready[0]), "judge", seed="judge")
        self.storage = MemoryStorage(uri, runtime=self._judge.runtime)
        self._completed: set[str] = set()
        self._plans = PlanWatch(self.storage, story, loop, checks_steps=self._checks_steps)
        self._last: tuple[str, str, str] = ("", "", "")

    @property
    def table(self) -> Table:
        """The table at this moment, for a judge who takes no turns."""
        self._judge.loop.now_s = self._loop.now_s
        return open_table(self.storage, self._judge)

    def post_of(self, process: Process) -> Post:
        return self.posts[process.name]

    def fault_at(self, process: Process, call: Call) -> Fault | None:
        post = self.post_of(process)
        post.calls[""] += 1
        fault = self._faults.pop((post.actor, post.job, "", post.calls[""]), None)
        if sort := sort_of(call):
            post.calls[sort] += 1
            fault = self._faults.pop((post.actor, post.job, sort, post.calls[sort]), fault)
        if fault is not None and post.worker is not None:
            post.worker.is_disturbed = True
            post.worker.is_hurt |= fault.kind.is_error
        return fault

    def remark(self, process: Process, note: str) -> None:
        """A line of the trace that is no call."""
        self._note(process, None, note)

    def saw(self, process: Process, call: Call, answer: object, fault: Fault | None) -> None:
        self._note(process, call, _shown(call, answer) + (f"  ! {fault.kind.value}" if fault else ""))
        self._cover(process, call)
        if call.changes and call.path.startswith(_HEARTBEATS) and not isinstance(answer, Exception):
            self._plans.saw_heartbeat(process.name, call, answer)
        if call.changes and call.path.startswith(_TIMELINE) and not isinstance(answer, Exception):
            self._saw_timeline(process, call, answer)

    def check_rows(self, moment: str) -> None:
        """The rows are those of the commits."""
        expected = sorted((key, city, fare) for key, (city, fare) in self.story.rows().items())
        try:
            rows = rows_of(self.table.read())
        except TablekeeperError as error:
            self.story.complain("readable", f"{moment} the table cannot be read: {error}")
            return
        if rows != expected:
            self.story.complain("rows", f"{moment} the rows are {rows} and should be {expected}")

    def _saw_timeline(self, process: Process, call: Call, answer: object) -> None:
        name = call.path.removeprefix(_TIMELINE)
        instant = decode_instant_name(name)
        if instant is None:
            return
        action, state = instant.action.value, instant.state.value
        self.coverage.add(hash_of("timeline", action, state, call.kind, self._doing(process)))
        if not instant.is_completed:
            if instant.action is Action.RESTORE and instant.state is State.REQUESTED and answer is True:
                # What has completed by now may go, and nothing that completes later.
                self.story.withdrawable.update(self.story.commits)
            self._plans.saw_pending(process.name, instant, answer, doing=self._doing(process))
            return
        if call.kind == "put_if_absent" and answer is True:
            self._completes(process, instant, name)
        elif call.kind == "delete" and not ("archive" in self._doing(process) and self._is_archived(instant)):
            self._leaves(instant)

    def _completes(self, process: Process, instant: Instant, name: str) -> None:
        identity = f"{instant.requested_at}.{instant.action.completed_as.value}"
        if identity in self._completed and self._checks_steps:
            self.story.complain("once", f"{identity} completed twice")
        self._completed.add(identity)
        if not instant.action.writes_data:
            return
        self._refuse_during_restore(process, name)
        metadata = decode_commit_metadata(self.storage.read(_TIMELINE + name), file=name)
        completed_at = "" if instant.completed_at is None else instant.completed_at.value
        if metadata.operation not in _SERVICES:
            effect, written = self._effect(process, metadata, name)
            commit = Commit(instant.requested_at.value, completed_at, written, effect)
            if self._checks_steps and any(each.name == written for each in self.story.commits.values()):
                self.story.complain("once", f"{written} landed twice")
            self.story.commits[commit.requested_at] = commit
            self.story.states.append(self.story.rows())
        self._check_step(f"after {name}")

    def _refuse_during_restore(self, process: Process, name: str) -> None:
        pending = load_timeline(self.storage, load_table_config(self.storage)).pending
        if self._checks_steps and any(instant.action is Action.RESTORE for instant in pending):
            self.story.complain("restore", f"{process.name} completed {name} during a restore")

    def _is_archived(self, instant: Instant) -> bool:
        # Who archives may finish a rollback first, which takes files off the timeline too.
        return find_archived(self.storage, load_table_config(self.storage), instant) is not None

    def _leaves(self, instant: Instant) -> None:
        identity = f"{instant.requested_at}.{instant.action.completed_as.value}"
        self._completed.discard(identity)
        time = instant.requested_at.value
        if self.story.commits.pop(time, None) is not None:
            self.story.moments = {moment: rows for moment, rows in self.story.moments.items() if moment < time}
            self.story.states.append(self.story.rows())

    def _effect(self, process: Process, metadata: CommitMetadata, name: str) -> tuple[Effect, str]:
        written = metadata.extra.get(NAME_KEY, "")
        if metadata.operation is Operation.DELETE_PARTITION:
            worker = self.post_of(process).worker
            return drops(frozenset(metadata.partitions)), worker.name if worker is not None else name
        write = self.story.writes.get(written)
        if write is None:
            self.story.complain("once", f"{name} is of no write that was made: {written!r}")
            return lambda _: None, name
        return write.effect, written

    def _check_step(self, moment: str) -> None:
        # Where late changes cannot be kept out they are taken back: that holds in the end, not after every step.
        if self._checks_steps:
            self.check_rows(moment)

    def _doing(self, process: Process) -> str:
        return self.post_of(process).doing

    def _cover(self, process: Process, call: Call) -> None:
        here = (process.name, self._doing(process), f"{call.kind} {_place(call.path)}")
        if self._last[0] != process.name:
            self.coverage.add(hash_of("switch", *self._last[1:], *here[1:]))
        self._last = here

    def _note(self, process: Process, call: Call | None, note: str) -> None:
        fiber = self._loop.current.name if self._loop.current is not None else process.name
        self.story.events.append(
            Event(self._loop.steps, self._loop.now_s, process.name, fiber, self._doing(process), call, note)
        )


def hash_of(*parts: str) -> int:
    """The same number in every process, other than `hash`."""
    number = 0
    for character in "\0".join(parts).encode():
        number = (number * 1_000_003 ^ character) & 0xFFFF_FFFF_FFFF
    return number


def _place(path: str) -> str:
    """What kind of file a path is, without times and ids."""
    folder, _, name = path.rpartition("/")
    kind = name.rpartition(".")[2] if "." in name else ("" if name[:1].isdigit() else name)
    return f"{folder.split('/2')[0]}/{kind}"


def _shown(call: Call, answer: object) -> str:
    """The answer in a few words."""
    if isinstance(answer, Exception):
        return f"{type(answer).__name__}"
    if isinstance(answer, list):
        names = [getattr(each, "name", str(each)) for each in answer]
        return f"{len(names)}: {' '.join(names[-3:])}" if names else "nothing"
    if answer is None:
        return "nothing" if call.kind in ("stat", "read_versioned", "replace") else ""
    if isinstance(answer, bool):
        return "done" if answer else "refused"
    return "done" if call.changes else "there"
