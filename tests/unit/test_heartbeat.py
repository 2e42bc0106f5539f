"""Heartbeats: renewal, expiry, fencing, and clocks that disagree."""

from __future__ import annotations

from typing import cast

import pytest

from tablekeeper.config.concurrency_settings import HeartbeatSettings
from tablekeeper.errors import FencedError, InvalidRequestError
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.storage.memory import MemoryStorage, forget_memory
from tablekeeper.storage.protocol import Storage
from tablekeeper.txn.heartbeat import Heartbeat, delete_heartbeat, load_heartbeats, start_heartbeat
from tests.support.fake_runtime import FakeClock, FakeWorld
from tests.support.meanwhile import Interrupted
from tests.support.storage_wrappers import FaultyStorage

INSTANT = RequestedTime("20240101000000000")
FILE = f".hoodie/.heartbeat/{INSTANT}"
SETTINGS = HeartbeatSettings()


class World:
    """One writer with a heartbeat, and an observer, on one clock."""

    def __init__(self) -> None:
        forget_memory("heartbeats")
        world = FakeWorld()
        self.clock: FakeClock = world.clock
        self.runtime: Runtime = world.process()
        self.storage: Storage = MemoryStorage("memory://heartbeats/table", runtime=self.runtime)

    def start(
        self, storage: Storage | None = None, settings: HeartbeatSettings = SETTINGS, *, owner: str = ""
    ) -> Heartbeat:
        return start_heartbeat(storage or self.storage, INSTANT, settings=settings, runtime=self.runtime, owner=owner)

    def is_active(self) -> bool:
        return load_heartbeats(self.storage, settings=SETTINGS, runtime=self.runtime).is_active(INSTANT)


@pytest.fixture
def world() -> World:
    return World()


def test_a_heartbeat_is_an_empty_file_named_after_its_instant(world: World) -> None:
    world.start()
    assert world.storage.read(FILE) == b""
    assert world.is_active()


def test_a_running_heartbeat_stays_active_for_hours(world: World) -> None:
    heartbeat = world.start()
    for _ in range(100):
        world.clock.advance(97)
        assert world.is_active()
    heartbeat.check()


def test_stopping_removes_the_file_and_may_be_repeated(world: World) -> None:
    heartbeat = world.start()
    heartbeat.stop()
    heartbeat.stop()
    assert world.storage.stat(FILE) is None
    assert not world.is_active()


def test_a_stopped_heartbeat_does_not_allow_a_commit(world: World) -> None:
    with world.start() as heartbeat:
        heartbeat.check()
    with pytest.raises(FencedError, match=f"instant {INSTANT}: its heartbeat was stopped"):
        heartbeat.check()


def test_a_stalled_writer_is_dead_to_others_only_after_the_tolerance_and_the_skew_allowance(world: World) -> None:
    world.start()
    world.clock.stall(130)
    assert world.is_active()
    world.clock.stall(1)
    assert not world.is_active()


def test_a_stalled_writer_fences_itself_before_others_take_it_for_dead(world: World) -> None:
    heartbeat = world.start()
    world.clock.stall(107)
    heartbeat.check()
    world.clock.stall(1)
    assert world.is_active()
    with pytest.raises(FencedError, match="could not be renewed for 108 s"):
        heartbeat.check()


def test_a_writer_that_wakes_up_late_is_not_revived_by_its_next_beat(world: World) -> None:
    heartbeat = world.start()
    world.clock.stall(600)
    world.clock.advance(600)
    assert not world.is_active()
    with pytest.raises(FencedError):
        heartbeat.check()


def test_a_suspended_machine_notices_by_the_wall_clock(world: World) -> None:
    heartbeat = world.start()
    world.clock.suspend(3_600)
    with pytest.raises(FencedError):
        heartbeat.check()


def test_a_wall_clock_set_back_an_hour_neither_kills_nor_prolongs_a_heartbeat(world: World) -> None:
    heartbeat = world.start()
    world.clock.suspend(-3_600)
    heartbeat.check()
    world.clock.advance(100)
    heartbeat.check()
    assert world.is_active()
    world.clock.stall(110)
    with pytest.raises(FencedError):
        heartbeat.check()


def test_a_heartbeat_from_the_future_is_active_within_the_tolerance_and_the_skew_allowance(world: World) -> None:
    world.start()
    world.clock.suspend(-130)
    assert world.is_active()
    world.clock.suspend(-1)
    assert not world.is_active()


def test_a_heartbeat_from_far_in_the_future_holds_nothing_and_its_age_is_told(world: World) -> None:
    world.start()
    world.clock.suspend(-3_600)
    view = load_heartbeats(world.storage, settings=SETTINGS, runtime=world.runtime)
    assert not view.is_active(INSTANT)
    assert view.ages[INSTANT] == -3_600


def test_a_live_writer_is_active_again_with_its_first_beat_after_the_clock_was_set_back(world: World) -> None:
    heartbeat = world.start()
    world.clock.suspend(-3_600)
    heartbeat.renew()
    assert world.is_active()


def test_an_instant_without_a_heartbeat_is_not_active(world: World) -> None:
    assert not world.is_active()


def test_ages_are_told_in_seconds_for_every_instant_and_strangers_are_left_out(world: World) -> None:
    world.start()
    world.storage.put(f".hoodie/.heartbeat/.{INSTANT}.crc", b"")
    world.storage.put(".hoodie/.heartbeat/notes", b"")
    world.clock.stall(5)
    view = load_heartbeats(world.storage, settings=SETTINGS, runtime=world.runtime)
    assert view.ages == {INSTANT: 5.0}


def test_a_removed_heartbeat_is_not_brought_back_and_fences_its_writer(world: World) -> None:
    heartbeat = world.start()
    delete_heartbeat(world.storage, INSTANT)
    world.clock.advance(60)
    assert world.storage.stat(FILE) is None
    with pytest.raises(FencedError, match="removed by another writer"):
        heartbeat.check()


def test_a_lapsed_heartbeat_leaves_the_file_of_its_successor_alone(world: World) -> None:
    first = world.start()
    world.clock.stall(600)
    second = world.start()
    first.stop()
    assert world.is_active()
    second.check()


def test_a_beat_does_not_take_a_heartbeat_back_that_somebody_else_has_taken_over(world: World) -> None:
    first = world.start(owner="first")
    second = world.start(owner="second")
    world.clock.advance(300)
    assert world.storage.read(FILE) == b"second"
    second.check()
    with pytest.raises(FencedError, match="taken over"):
        first.check()


@pytest.mark.parametrize("beats", [0, 2], ids=["at_its_first_beat", "later"])
def test_a_beat_that_sleeps_before_its_call_brings_nothing_back(world: World, beats: int) -> None:
    asleep = Interrupted(world.storage)
    first = world.start(cast(Storage, asleep), owner="first")
    for _ in range(beats):
        first.renew()
    first.check()

    def taken_over(kind: str, path: str) -> None:
        if kind == "replace":
            delete_heartbeat(world.storage, INSTANT)
            world.start(owner="second")

    asleep.watch = taken_over
    first.renew()
    assert world.storage.read(FILE) == b"second"
    with pytest.raises(FencedError, match="taken over"):
        first.check()


def test_stopping_leaves_the_file_of_somebody_else_alone(world: World) -> None:
    first = world.start(owner="first")
    second = world.start(owner="second")
    first.stop()
    assert world.storage.read(FILE) == b"second"
    second.stop()
    assert world.storage.stat(FILE) is None


@pytest.mark.parametrize("operation", ["read_versioned", "replace"])
def test_a_store_that_fails_for_a_while_costs_nothing_if_it_comes_back_in_time(world: World, operation: str) -> None:
    faulty = FaultyStorage(world.storage)
    heartbeat = world.start(cast(Storage, faulty))
    faulty.before.add(operation)
    world.clock.advance(70)
    heartbeat.check()
    faulty.before.clear()
    world.clock.advance(100)
    heartbeat.check()
    assert world.is_active()


def test_a_store_that_fails_too_long_fences_the_writer(world: World) -> None:
    faulty = FaultyStorage(world.storage)
    heartbeat = world.start(cast(Storage, faulty))
    faulty.before.add("replace")
    world.clock.advance(120)
    with pytest.raises(FencedError):
        heartbeat.check()


def test_a_beat_that_takes_too_long_counts_from_its_beginning(world: World) -> None:
    faulty = FaultyStorage(world.storage)
    heartbeat = world.start(cast(Storage, faulty))
    faulty.on_call = lambda name: world.clock.stall(50) if name == "replace" else None
    world.clock.advance(40)
    faulty.on_call = lambda _: None
    world.clock.stall(57)
    heartbeat.check()
    world.clock.stall(1)
    with pytest.raises(FencedError):
        heartbeat.check()


def test_a_store_that_fails_at_the_end_does_not_fail_the_write(world: World) -> None:
    faulty = FaultyStorage(world.storage)
    heartbeat = world.start(cast(Storage, faulty))
    faulty.before.add("delete")
    heartbeat.stop()
    assert world.storage.stat(FILE) is not None


def test_a_beat_that_is_refused_the_right_to_write_ends_the_heartbeat(world: World) -> None:
    def refuse(operation: str) -> None:
        if operation == "replace":
            raise FencedError("another process has ended this work")

    faulty = FaultyStorage(world.storage)
    heartbeat = world.start(cast(Storage, faulty))
    faulty.on_call = refuse
    world.clock.advance(70)
    with pytest.raises(FencedError, match="taken over or removed"):
        heartbeat.check()


def test_once_its_instant_is_completed_the_file_goes_whoever_wrote_it_last(world: World) -> None:
    heartbeat = world.start(owner="me")
    world.storage.put(FILE, b"somebody else")
    heartbeat.stop(is_completed=True)
    assert world.storage.stat(FILE) is None


def test_a_beat_that_follows_another_one_needs_no_second_look(world: World) -> None:
    asked: list[str] = []
    watched = FaultyStorage(world.storage)
    world.start(cast(Storage, watched))
    watched.on_call = asked.append
    world.clock.advance(70)
    asked.clear()
    world.clock.advance(60)
    assert set(asked) == {"replace"}


def test_one_tolerable_miss_still_leaves_room_for_a_late_beat(world: World) -> None:
    heartbeat = world.start(settings=HeartbeatSettings(interval_ms=3_000, tolerable_misses=1))
    for _ in range(50):
        world.clock.advance(0.7)
        heartbeat.check()


def test_settings_come_from_the_keys_of_java() -> None:
    options = {"hoodie.client.heartbeat.interval_in_ms": "5000", "hoodie.client.heartbeat.tolerable.misses": "4"}
    settings = HeartbeatSettings.from_options(options)
    assert settings == HeartbeatSettings(interval_ms=5_000, tolerable_misses=4)
    assert settings.tolerance_ms == 20_000
    assert HeartbeatSettings.from_options({}) == HeartbeatSettings(interval_ms=60_000, tolerable_misses=2)


def test_the_allowance_for_clocks_that_differ_can_be_set() -> None:
    settings = HeartbeatSettings.from_options({"tablekeeper.heartbeat.skew.allowance.ms": "500"})
    assert settings == HeartbeatSettings(skew_allowance_ms=500)
    with pytest.raises(InvalidRequestError, match=r"tablekeeper\.heartbeat\.skew"):
        HeartbeatSettings.from_options({"tablekeeper.heartbeat.skew.allowance.ms": "-1"})


@pytest.mark.parametrize("value", ["999", "soon"])
def test_an_interval_that_is_too_short_or_no_number_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"hoodie\.client\.heartbeat\.interval_in_ms"):
        HeartbeatSettings.from_options({"hoodie.client.heartbeat.interval_in_ms": value})


def test_an_abandoned_heartbeat_stays_until_it_lapses_and_beats_no_more(world: World) -> None:
    heartbeat = world.start()
    heartbeat.abandon()
    assert world.storage.stat(FILE) is not None
    assert world.is_active()
    with pytest.raises(FencedError, match="was stopped"):
        heartbeat.check()
    world.clock.advance(1_000)
    assert not world.is_active()


def test_a_new_heartbeat_takes_the_place_of_an_expired_one(world: World) -> None:
    world.start(owner="dead")
    world.clock.stall(10_000)
    heartbeat = world.start(owner="next")
    heartbeat.renew()
    heartbeat.check()
    assert world.storage.read(FILE) == b"next"
    assert world.is_active()


def test_who_slept_before_it_starts_a_heartbeat_leaves_that_of_its_successor_alone(world: World) -> None:
    """Its lease of the lock ended in its sleep, and another process took the plan over."""
    world.storage.put(FILE, b"successor")

    def look() -> None:
        raise FencedError("the lock was lost")

    with pytest.raises(FencedError, match="the lock was lost"):
        start_heartbeat(world.storage, INSTANT, settings=SETTINGS, runtime=world.runtime, owner="sleeper", look=look)
    assert world.storage.read(FILE) == b"successor"


def test_who_sleeps_while_it_starts_a_heartbeat_leaves_that_of_its_successor_alone(world: World) -> None:
    world.storage.put(FILE, b"dead")
    with pytest.raises(FencedError, match="another process has begun"):
        start_heartbeat(
            world.storage,
            INSTANT,
            settings=SETTINGS,
            runtime=world.runtime,
            owner="sleeper",
            # Its last look was in time, and the sleep comes right after it.
            look=lambda: world.storage.put(FILE, b"successor"),
        )
    assert world.storage.read(FILE) == b"successor"
