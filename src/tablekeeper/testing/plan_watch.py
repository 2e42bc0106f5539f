"""What must hold of plans and of whoever is at work on something, call by call.

One process at a time beats for an instant, nobody takes away what somebody is at work on, a mutable plan is begun once
and keeps its time, a cancelled plan is not begun, and no file group is in two plans of which neither yields.
"""

from __future__ import annotations

from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.testing.loop import Call, Loop
from tablekeeper.testing.process import START_MS
from tablekeeper.testing.story import Story
from tablekeeper.timeline import load_timeline, parse_time
from tablekeeper.timeline.plans import load_pending_outline, load_rollback_target
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.cancel_requests import load_cancel_request

__all__ = ["PlanWatch"]

_ACTIVE_S = 60.0
"""Less than any heartbeat is good for."""

_LEAST_DELAY_S = 300.0
"""Less than the delay of the settings by more than clocks differ, but for those that are meant to be wrong."""

_PATIENT = ("clean", "upsert", "archive")
"""Jobs that leave a mutable plan its time."""


class PlanWatch:
    """Sees the heartbeats and the pending instants of a run. `checks_steps` where late changes are kept out."""

    def __init__(self, storage: MemoryStorage, story: Story, loop: Loop, *, checks_steps: bool) -> None:
        self._storage = storage
        self._story = story
        self._loop = loop
        self._checks_steps = checks_steps
        self._beats: dict[str, tuple[str, float]] = {}
        self._begun: dict[str, str] = {}

    def saw_heartbeat(self, name: str, call: Call, answer: object) -> None:
        """A process of this name wrote or deleted a heartbeat."""
        instant = call.path.rpartition("/")[2]
        if call.kind == "delete":
            self._refuse_hasty_end(name, instant)
            self._beats.pop(instant, None)
            return
        if answer is False or (call.kind == "replace" and answer is None):
            return
        # What a process replaces of its own is renewed.
        if call.kind != "replace" or self._beats.get(instant, (name,))[0] != name:
            other = self._at_work(instant, beside=name)
            if other:
                self._story.complain("held", f"{name} began with {instant}, and {other} was at work on it")
            self._begins_attempt(name, instant)
        self._beats[instant] = name, self._loop.now_s

    def saw_pending(self, name: str, instant: Instant, answer: object, *, doing: str) -> None:
        """A process changed a pending state of this instant; with the answer True it has made it."""
        if answer is not True:
            return
        time = instant.requested_at.value
        if instant.action is Action.ROLLBACK and instant.state is State.REQUESTED:
            self._refuse_hasty_rollback(name, instant, doing)
        elif instant.action.is_plan and instant.state is State.REQUESTED:
            config = load_table_config(self._storage)
            flags = load_pending_outline(self._storage, config, instant).flags
            words = [w for w, is_so in (("cancellable", flags.cancellable), ("mutable", flags.mutable)) if is_so]
            self._story.flags[time] = " ".join(words) or "firm"
            self._refuse_shared_groups(instant)
        elif instant.action.is_plan and instant.state is State.INFLIGHT:
            self._begun.setdefault(time, name)
            if self._checks_steps and load_cancel_request(self._storage, instant.requested_at) is not None:
                self._story.complain("cancelled", f"{name} began with {instant}, which was cancelled")

    def _refuse_hasty_end(self, name: str, instant: str) -> None:
        """Nobody ends what another process is at work on."""
        other = self._at_work(instant, beside=name)
        if not other or not self._checks_steps:
            return
        found = load_timeline(self._storage, load_table_config(self._storage)).find(RequestedTime(instant))
        if found is not None and found.is_pending:
            self._story.complain("held", f"{name} ended {found}, and {other} was at work on it")

    def _begins_attempt(self, name: str, instant: str) -> None:
        """Only plans are begun by more than one."""
        first = self._begun.get(instant)
        if first is not None and self._checks_steps and "mutable" in self._story.flags[instant]:
            self._story.complain("begun once", f"{name} began with {instant}, which is mutable and {first} had begun")

    def _at_work(self, instant: str, *, beside: str) -> str:
        """Who else beats for the instant, if anybody does."""
        name, beat_s = self._beats.get(instant, (beside, 0.0))
        return name if name != beside and self._loop.now_s - beat_s < _ACTIVE_S else ""

    def _refuse_shared_groups(self, plan: Instant) -> None:
        """No file group is in two plans that wait or are executed, unless the other one yields."""
        config = load_table_config(self._storage)
        own = load_pending_outline(self._storage, config, plan, with_groups=True).file_groups
        for other in load_timeline(self._storage, config).pending_plans:
            if other.requested_at == plan.requested_at or self._yields(other.requested_at):
                continue
            shared = own & load_pending_outline(self._storage, config, other, with_groups=True).file_groups
            if shared and not self._yields(plan.requested_at):
                self._story.complain("rewritten once", f"{plan} and {other} both plan {sorted(shared)}")

    def _yields(self, time: RequestedTime) -> bool:
        return "cancellable" in self._story.flags.get(time.value, "")

    def _refuse_hasty_rollback(self, name: str, rollback: Instant, doing: str) -> None:
        """What somebody is at work on stays, and a mutable plan that nobody has begun or cancelled keeps its time."""
        config = load_table_config(self._storage)
        target = load_rollback_target(self._storage, config, rollback)
        if target is None:
            return
        timeline = load_timeline(self._storage, config)
        others = [i for i in timeline.pending_rollbacks if i.requested_at != rollback.requested_at]
        twice = [i for i in others if load_rollback_target(self._storage, config, i) == target]
        if twice and self._checks_steps:
            self._story.complain("once", f"{rollback} and {twice[0]} both roll {target} back")
        other = self._at_work(target.value, beside=name)
        found = timeline.find(target)
        if other and found is not None and found.is_pending and self._checks_steps:
            self._story.complain("held", f"{name} rolls {target} back, and {other} was at work on it")
        if found is None or not found.action.is_plan or found.state is not State.REQUESTED:
            return
        age_s = self._loop.now_s - _seconds(found.requested_at.value)
        is_asked = load_cancel_request(self._storage, found.requested_at) is not None
        if doing in _PATIENT and age_s < _LEAST_DELAY_S and not is_asked:
            self._story.complain("delay", f"{found} was taken off after {age_s:.0f} s, and nobody asked for it")


def _seconds(time: str) -> float:
    return (parse_time(time, zone="UTC") - START_MS) / 1000
