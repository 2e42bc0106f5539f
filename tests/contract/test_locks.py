"""One suite for all table locks; what only locks in a store can promise comes after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tablekeeper.errors import FencedError, LockNotAcquiredError, StorageError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage.protocol import Storage
from tablekeeper.txn.locks import Lease, TableLock
from tests.support.lock_arena import Arena
from tests.support.moto_server import MotoServer, moto_server
from tests.support.storage_wrappers import FaultyStorage
from tests.support.zookeeper_server import ZookeeperServer, zookeeper_server

LEASED = ["file_system-memory", "file_system-local", "storage_based-memory", "storage_based-local", "storage_based-s3"]


@pytest.fixture(scope="module")
def s3() -> Iterator[MotoServer]:
    with moto_server() as server:
        server.create_bucket("locks")
        yield server


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(params=["in_process-memory", "zookeeper-memory", *LEASED])
def arena(
    request: pytest.FixtureRequest, tmp_path: Path, s3: MotoServer, zookeeper: ZookeeperServer
) -> Iterator[Arena]:
    place = Arena(request.param, tmp_path, s3, zookeeper)
    yield place
    place.close()


@pytest.fixture(params=LEASED)
def leased(request: pytest.FixtureRequest, tmp_path: Path, s3: MotoServer) -> Arena:
    return Arena(request.param, tmp_path, s3)


# --- every lock


def test_a_second_writer_gets_the_lock_only_after_the_first_released_it(arena: Arena) -> None:
    lease = arena.writer().acquire(timeout_s=0)
    assert arena.is_taken()
    lease.release()
    assert not arena.is_taken()


def test_a_lock_that_is_never_taken_has_no_holder(arena: Arena) -> None:
    assert arena.writer().describe() is None


def test_a_released_lock_has_no_holder(arena: Arena) -> None:
    arena.writer().acquire(timeout_s=0).release()
    assert arena.writer().describe() is None


def test_a_holder_is_described_with_its_age(arena: Arena) -> None:
    arena.writer().acquire(timeout_s=0)
    arena.clock.advance(42)
    holder = arena.writer().describe()
    assert holder is not None
    assert holder.age_s == 42
    assert holder.since_ms == arena.clock.now_ms() - 42_000
    assert not holder.is_lapsed


def test_waiting_in_vain_ends_in_time_and_names_holder_age_and_next_step(arena: Arena) -> None:
    with arena.writer().acquire(timeout_s=0):
        holder = arena.writer().describe()
        assert holder is not None
        before_s = arena.clock.monotonic_s()
        with pytest.raises(LockNotAcquiredError) as caught:
            arena.writer().acquire(timeout_s=20)
        assert 20 <= arena.clock.monotonic_s() - before_s < 20.1
    message = str(caught.value)
    assert f"held by {holder.owner}" in message
    assert "for 20 s" in message
    assert "Try again" in message


def test_a_waiting_writer_gets_the_lock_when_it_becomes_free(arena: Arena) -> None:
    runtime = arena.world.process()
    lease = arena.writer().acquire(timeout_s=0)
    runtime.threads.every(7, lease.release, name="release")
    waited = arena.writer(runtime=runtime).acquire(timeout_s=60)
    waited.check()
    assert all(pause_s <= 0.15 for pause_s in arena.clock.slept_s)


def test_leaving_the_block_releases_the_lock_also_by_an_error(arena: Arena) -> None:
    def work() -> None:
        with arena.writer().acquire(timeout_s=0):
            raise RuntimeError("work failed")

    with pytest.raises(RuntimeError, match="work failed"):
        work()
    assert not arena.is_taken()


def test_releasing_again_does_not_touch_the_lock_of_the_next_holder(arena: Arena) -> None:
    first = arena.writer().acquire(timeout_s=0)
    first.release()
    second = arena.writer().acquire(timeout_s=0)
    first.release()
    second.check()
    assert arena.is_taken()


def test_a_held_lease_passes_its_check_and_a_released_one_does_not(arena: Arena) -> None:
    with arena.writer().acquire(timeout_s=0) as lease:
        lease.check()
    with pytest.raises(FencedError, match="released"):
        lease.check()


def test_the_time_held_is_measured_until_the_release(arena: Arena) -> None:
    lease = arena.writer().acquire(timeout_s=0)
    arena.clock.advance(3)
    assert lease.held_s == 3
    lease.release()
    arena.clock.advance(100)
    assert lease.held_s == 3


def test_threads_exclude_each_other(arena: Arena) -> None:
    value = 0
    inside = 0

    def add(_: int) -> None:
        nonlocal value, inside
        with arena.writer(runtime=SYSTEM_RUNTIME).acquire(timeout_s=60) as lease:
            inside += 1
            assert inside == 1
            seen = value
            lease.check()
            value = seen + 1
            inside -= 1

    SYSTEM_RUNTIME.threads.map(add, range(40), width=8)
    assert value == 40


# --- locks in a store: leases


def test_a_lease_is_renewed_as_long_as_it_is_held(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    for _ in range(30):
        leased.clock.advance(171)
        lease.check()
        assert leased.is_taken()


def test_a_release_ends_the_renewals(leased: Arena) -> None:
    leased.writer().acquire(timeout_s=0).release()
    before = leased.storage.read_versioned(leased.path)
    leased.clock.advance(1_000)
    assert leased.storage.read_versioned(leased.path) == before


def test_a_stalled_holder_fences_itself_before_anybody_can_take_over(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(269)
    lease.check()
    leased.clock.stall(1)
    assert leased.is_taken()
    with pytest.raises(FencedError, match="not renewed within its 300 s"):
        lease.check()


def test_the_lock_of_a_stalled_holder_is_taken_over_after_its_lease(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(300.5)
    assert leased.is_taken()
    leased.clock.stall(0.1)
    taker = leased.writer().acquire(timeout_s=0)
    taker.check()
    with pytest.raises(FencedError):
        stalled.check()


def test_a_holder_that_wakes_up_after_a_take_over_neither_publishes_nor_frees_the_lock(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(301)
    taker = leased.writer().acquire(timeout_s=0)
    leased.clock.advance(100)  # the renewals of both run again
    with pytest.raises(FencedError):
        stalled.check()
    stalled.release()
    taker.check()
    assert leased.is_taken()


def test_a_holder_that_wakes_up_late_stays_fenced_though_nobody_took_over(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(600)
    leased.clock.advance(600)
    with pytest.raises(FencedError):
        stalled.check()


def test_a_late_release_frees_a_lock_that_nobody_took_over(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(280)
    stalled.release()
    assert leased.writer().describe() is None


def test_a_suspended_machine_notices_by_the_wall_clock(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.clock.suspend(3_600)
    with pytest.raises(FencedError):
        lease.check()


def test_a_wall_clock_set_back_an_hour_does_not_prolong_a_lease(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.clock.suspend(-3_600)
    lease.check()
    leased.clock.stall(270)
    with pytest.raises(FencedError):
        lease.check()


def test_a_check_that_hangs_too_long_does_not_pass(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.on_call = lambda _: leased.clock.stall(280)
    with pytest.raises(FencedError):
        lease.check()


def test_a_take_over_during_the_lease_is_noticed_by_content(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.storage.put(leased.path, b'{"expired": false, "validUntil": 9999999999999, "owner": "java"}')
    with pytest.raises(FencedError, match="taken the lock over"):
        lease.check()
    lease.release()
    assert b"java" in leased.storage.read(leased.path)


def test_a_lock_that_was_deleted_under_its_holder_fences_it(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.storage.delete(leased.path)
    with pytest.raises(FencedError, match="removed while it was held"):
        lease.check()
    lease.release()
    assert leased.storage.stat(leased.path) is None


def test_a_renewal_finds_out_about_a_take_over(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.storage.put(leased.path, b"someone else")
    leased.clock.advance(31)
    with pytest.raises(FencedError, match="taken the lock over"):
        lease.check()


def test_the_lock_of_a_dead_process_is_taken_over_at_once(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    assert leased.is_taken()
    leased.dead.add(1)
    holder = leased.writer().describe()
    assert holder is not None
    assert holder.is_lapsed
    assert holder.detail == "process 1 on host"
    taker = leased.writer().acquire(timeout_s=0)
    taker.check()
    with pytest.raises(FencedError):
        lease.check()


@pytest.mark.parametrize("way", ["dead", "lapsed"])
def test_of_many_takers_exactly_one_wins(leased: Arena, way: str) -> None:
    leased.writer().acquire(timeout_s=0)
    if way == "dead":
        leased.dead.add(1)
    else:
        leased.clock.stall(301)
    writers = [leased.writer() for _ in range(8)]

    def take(lock: TableLock) -> Lease | None:
        try:
            return lock.acquire(timeout_s=0)
        except LockNotAcquiredError:
            return None

    winners = [lease for lease in SYSTEM_RUNTIME.threads.map(take, writers, width=8) if lease is not None]
    assert len(winners) == 1
    winners[0].check()


@pytest.mark.parametrize("operation", ["replace", "read_versioned"])
def test_a_store_that_fails_for_a_while_does_not_cost_the_lock(leased: Arena, operation: str) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.before.add(operation)
    leased.clock.advance(200)
    faulty.before.clear()
    leased.clock.advance(200)
    lease.check()
    assert leased.is_taken()


def test_a_store_that_fails_too_long_fences_the_holder(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.before.add("replace")
    leased.clock.advance(300)
    with pytest.raises(FencedError):
        lease.check()


def test_a_renewal_whose_answer_got_lost_is_recognised(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.after.add("replace")
    leased.clock.advance(31)
    faulty.after.clear()
    leased.clock.advance(300)
    lease.check()
    lease.release()
    assert not leased.is_taken()


@pytest.mark.parametrize("operation", ["put_if_absent", "read_versioned"])
def test_an_acquisition_whose_answer_got_lost_is_recognised(leased: Arena, operation: str) -> None:
    faulty = FaultyStorage(leased.storage)
    faulty.after.add(operation)
    waiting = leased.world.process()
    waiting.threads.every(1, faulty.after.clear, name="recovery")
    lease = leased.writer(storage=cast(Storage, faulty), runtime=waiting).acquire(timeout_s=10)
    lease.check()
    lease.release()
    assert not leased.is_taken()


def test_a_fault_that_does_not_pass_is_raised_at_once(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lock = leased.writer(storage=cast(Storage, faulty))

    def refuse(_: str) -> None:
        raise StorageError("access denied")

    faulty.on_call = refuse
    with pytest.raises(StorageError, match="access denied"):
        lock.acquire(timeout_s=60)
    assert leased.clock.slept_s == []


def test_a_release_that_fails_leaves_the_lock_to_lapse_and_raises_nothing(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.before |= {"replace", "delete"}
    lease.release()
    assert leased.is_taken()
    leased.clock.advance(301)
    assert not leased.is_taken()
