"""What only the local store does: its scratch directory, Java's checksum sidecars, and the file system's errors."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablekeeper.errors import FencedError, NotFoundError, StorageError
from tablekeeper.storage import LocalStorage, scratch
from tablekeeper.storage.faults import storage_fault
from tablekeeper.storage.local import SCRATCH

DAY_S = 24 * 3600


@pytest.fixture
def store(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "table")


def leftovers(store: LocalStorage) -> list[str]:
    return sorted(path.name for path in (store.root / SCRATCH).iterdir() if path.name != "publish.lock")


# Java's checksum sidecars


def make_sidecar(store: LocalStorage, path: str) -> Path:
    target = store.root / path
    sidecar = target.parent / f".{target.name}.crc"
    sidecar.parent.mkdir(parents=True, exist_ok=True)
    sidecar.write_bytes(b"crc\0")
    return sidecar


@pytest.mark.parametrize("way", ["put", "put_if_absent", "replace", "open_output", "delete", "delete_many"])
def test_a_stale_checksum_sidecar_goes_away_with_every_change(store: LocalStorage, way: str) -> None:
    if way != "put_if_absent":
        store.put("p/file", b"old")
    seen = store.read_versioned("p/file")
    sidecar = make_sidecar(store, "p/file")
    if way == "put":
        store.put("p/file", b"new")
    elif way == "put_if_absent":
        assert store.put_if_absent("p/file", b"new")
    elif way == "replace":
        assert seen is not None
        assert store.replace("p/file", b"new", version=seen.version)
    elif way == "open_output":
        with store.open_output("p/file") as sink:
            sink.write(b"new")
    elif way == "delete":
        store.delete("p/file")
    else:
        store.delete_many(["p/file"])
    assert not sidecar.exists()


def test_the_sidecar_is_gone_before_the_new_contents_appear(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("p/file", b"old")
    sidecar = make_sidecar(store, "p/file")
    seen: list[bool] = []
    rename = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append(sidecar.exists())
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    store.put("p/file", b"new")
    assert seen == [False]


def test_a_refused_write_leaves_the_sidecar_of_the_existing_file_alone(store: LocalStorage) -> None:
    store.put("p/file", b"java's")
    sidecar = make_sidecar(store, "p/file")
    assert not store.put_if_absent("p/file", b"ours")
    assert store.replace("p/file", b"ours", version="other") is None
    assert sidecar.exists()


def test_listings_leave_out_sidecars_and_nothing_else(store: LocalStorage) -> None:
    for name in ("data.parquet", ".data.parquet.crc", ".hoodie_partition_metadata", "x.crc", ".log.1_0-0-0"):
        (store.root / "p").mkdir(parents=True, exist_ok=True)
        (store.root / "p" / name).write_bytes(b"")
    expected = [".hoodie_partition_metadata", ".log.1_0-0-0", "data.parquet", "x.crc"]
    assert [info.name for info in store.list_files("p")] == expected
    assert store.list_names("p") == expected
    assert sorted(info.name for info in store.walk("")) == expected


# The scratch directory


def test_nothing_is_left_in_the_scratch_directory(store: LocalStorage) -> None:
    store.put("a", b"1")
    assert store.put_if_absent("b", b"1")
    assert not store.put_if_absent("b", b"2")
    assert store.replace("a", b"2", version="wrong") is None
    with store.open_output("c") as sink:
        sink.write(b"1")
    assert leftovers(store) == []


def test_the_scratch_directory_is_in_no_listing(store: LocalStorage) -> None:
    store.put(".hoodie/hoodie.properties", b"")
    with store.open_output("p/a") as sink:
        sink.write(b"1")
        assert [info.path for info in store.walk("")] == [".hoodie/hoodie.properties"]
        assert store.list_files(SCRATCH) == []
        assert list(store.walk(SCRATCH)) == []
        assert store.list_directories(".hoodie/.tablekeeper") == []


def test_reading_and_deleting_make_no_directories(store: LocalStorage) -> None:
    assert store.stat("a") is None
    assert store.list_files("") == []
    store.delete("a")
    store.delete_many(["a", "p/b"])
    store.delete_tree("p")
    assert not store.root.exists()
    store.root.mkdir()
    store.delete("a")
    assert list(store.root.iterdir()) == []


def test_what_dead_processes_left_is_removed_after_a_day(store: LocalStorage) -> None:
    scratch = store.root / SCRATCH
    scratch.mkdir(parents=True)
    for name, age_s in (("old", DAY_S + 60), ("young", DAY_S - 60), ("publish.lock", 9 * DAY_S)):
        (scratch / name).write_bytes(b"")
        past = (scratch / name).stat().st_mtime - age_s
        os.utime(scratch / name, (past, past))
    store.put("a", b"")
    assert leftovers(store) == ["young"]
    assert (scratch / "publish.lock").exists()


def test_a_store_whose_tree_was_removed_under_it_goes_on(store: LocalStorage) -> None:
    store.put("a", b"1")
    store.delete_tree("")
    assert not store.root.exists()
    store.put("a", b"2")
    seen = store.read_versioned("a")
    assert seen is not None
    assert store.replace("a", b"3", version=seen.version)
    assert store.read("a") == b"3"


# Versions and locks


def test_the_same_bytes_written_again_are_a_new_version_each_time(store: LocalStorage) -> None:
    versions = set()
    for _ in range(200):
        store.delete("lock")
        store.put("lock", b"same")
        seen = store.read_versioned("lock")
        assert seen is not None
        versions.add(seen.version)
        replaced = store.replace("lock", b"same", version=seen.version)
        assert replaced is not None
        versions.add(replaced)
    assert len(versions) == 400


@pytest.mark.parametrize("change", ["put", "delete", "open_output"])
def test_nothing_comes_between_the_comparison_and_the_rename_of_a_replace(store: LocalStorage, change: str) -> None:
    store.put("lock", b"0")
    with open(store.root / SCRATCH / "publish.lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        script = (
            "import sys; from tablekeeper.storage import LocalStorage\n"
            "store = LocalStorage(sys.argv[1]); print('started', flush=True)\n"
            "if sys.argv[2] == 'put': store.put('lock', b'1')\n"
            "if sys.argv[2] == 'delete': store.delete('lock')\n"
            "if sys.argv[2] == 'open_output':\n"
            "    with store.open_output('lock') as sink: sink.write(b'1')\n"
        )
        process = run_python(script, str(store.root), change)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert store.read("lock") == b"0"
        fcntl.flock(held, fcntl.LOCK_UN)
    assert process.wait(30) == 0
    assert store.stat("lock") is None or store.read("lock") == b"1"
    process.stdout.close()


def test_a_file_system_without_locks_allows_plain_writes_and_refuses_conditional_ones(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"1")
    seen = store.read_versioned("a")
    assert seen is not None

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    store.put("a", b"2")
    with pytest.raises(StorageError, match="has no file locks"):
        store.replace("a", b"3", version=seen.version)
    assert store.read("a") == b"2"


def test_a_file_system_without_hard_links_is_refused_for_creating_once(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "hardlink_to", raising(errno.EPERM))
    with pytest.raises(StorageError, match="refuses hard links"):
        store.put_if_absent("a", b"1")
    assert leftovers(store) == []


def test_a_link_that_was_made_although_reported_as_taken_counts_as_won(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Path.hardlink_to

    def linked_but_lost(self: Path, target: Path) -> None:
        link(self, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    store.put("other", b"")
    monkeypatch.setattr(Path, "hardlink_to", linked_but_lost)
    assert store.put_if_absent("a", b"1")
    assert store.read("a") == b"1"


# Errors of the file system


def raising(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.ENOSPC, "the disk is full. Free space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied. Give this user write access"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENAMETOOLONG, "shorter partition values"),
        (errno.EXDEV, "Keep a table on one file system"),
        (errno.EIO, "Check the disk"),
        (errno.ENODEV, "No such device. Check the path"),
    ],
)
def test_each_error_names_the_file_and_the_next_step(code: int, hint: str) -> None:
    error = storage_fault(OSError(code, os.strerror(code)), action="write", location="/lake/t/a")
    assert str(error).startswith("/lake/t/a: cannot write: ")
    assert hint in str(error)
    assert error.path == "/lake/t/a"
    assert not error.transient


def test_a_missing_file_stays_a_missing_file() -> None:
    assert isinstance(storage_fault(FileNotFoundError(), action="read", location="/a"), NotFoundError)


def test_a_full_disk_leaves_the_old_object_and_no_leftovers(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", raising(errno.ENOSPC))
        for write in (lambda: store.put("a", b"new"), lambda: store.put_if_absent("b", b"new")):
            with pytest.raises(StorageError, match="the disk is full"):
                write()
    assert store.read("a") == b"old"
    assert store.stat("b") is None
    assert leftovers(store) == []


def test_a_file_that_outgrows_its_limit_while_parquet_is_written_is_reported(tmp_path: Path) -> None:
    script = (
        "import os, resource, signal, sys; import pyarrow as pa, pyarrow.parquet as pq\n"
        "from tablekeeper.errors import StorageError; from tablekeeper.storage import LocalStorage\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "store = LocalStorage(sys.argv[1])\n"
        "table = pa.table({'noise': [os.urandom(1000) for _ in range(1000)]})\n"
        "try:\n"
        "    with store.open_output('p/a.parquet') as sink: pq.write_table(table, sink)\n"
        "except StorageError as error: print(error)\n"
    )
    process = run_python(script, str(tmp_path / "table"))
    printed, _ = process.communicate(timeout=60)
    store = LocalStorage(tmp_path / "table")
    assert "p/a.parquet: cannot write: the file is larger than the system allows" in printed
    assert list(store.walk("")) == []
    assert leftovers(store) == []


def test_a_read_only_table_can_be_read_and_says_so_when_written(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"1")
    monkeypatch.setattr(os, "open", raising(errno.EROFS))
    with pytest.raises(StorageError, match=r"b: cannot write: the file system is read-only\. Mount it writable"):
        store.put("b", b"2")
    with pytest.raises(StorageError, match="a: cannot delete: the file system is read-only"):
        store.delete("a")
    assert store.read("a") == b"1"
    assert [info.path for info in store.list_files("")] == ["a"]


def test_a_file_where_a_directory_is_needed_is_reported(store: LocalStorage) -> None:
    store.put("p", b"")
    for write in (
        lambda: store.put("p/a", b""),
        lambda: store.put_if_absent("p/a", b""),
        lambda: write_output(store, "p/a"),
        lambda: store.put("p/q/a", b""),
    ):
        with pytest.raises(StorageError, match="a file where a directory is needed"):
            write()
    assert leftovers(store) == []


def test_an_output_whose_table_was_removed_meanwhile_is_reported_and_publishes_nothing(store: LocalStorage) -> None:
    def fill() -> None:
        with store.open_output("p/a") as sink:
            sink.write(b"1")
            store.delete_tree("")

    with pytest.raises(StorageError, match=r"p/a: cannot write: .* removed meanwhile") as caught:
        fill()
    assert not isinstance(caught.value, NotFoundError)
    assert store.stat("p/a") is None


def test_a_directory_where_a_file_is_to_be_is_reported(store: LocalStorage) -> None:
    store.put("p/a", b"")
    with pytest.raises(StorageError, match="there is a directory of that name"):
        store.put("p", b"")
    assert not store.put_if_absent("p", b"")
    assert store.read("p/a") == b""


def test_an_error_of_the_callers_own_passes_through_unchanged(store: LocalStorage) -> None:
    def fill() -> None:
        with store.open_output("a"):
            raise FileNotFoundError(errno.ENOENT, "another file", "/else/where")

    with pytest.raises(FileNotFoundError, match="another file"):
        fill()
    assert leftovers(store) == []


# Links and durability


def test_names_are_those_of_files_also_behind_links(store: LocalStorage) -> None:
    store.put("p/file", b"1")
    (store.root / "p" / "directory").mkdir()
    (store.root / "p" / "linked").symlink_to(store.root / "p" / "file")
    (store.root / "p" / "linked-directory").symlink_to(store.root / "p" / "directory")
    (store.root / "p" / "to-nothing").symlink_to(store.root / "p" / "gone")
    os.mkfifo(store.root / "p" / "pipe")
    assert store.list_names("p") == ["file", "linked"]
    assert [info.name for info in store.list_files("p")] == ["file", "linked"]


def test_a_link_that_leads_to_itself_is_in_no_listing(store: LocalStorage) -> None:
    store.put("p/file", b"1")
    (store.root / "p" / "itself").symlink_to(store.root / "p" / "itself")
    (store.root / "p" / "there").symlink_to(store.root / "p" / "back")
    (store.root / "p" / "back").symlink_to(store.root / "p" / "there")
    assert store.list_names("p") == ["file"]
    assert [info.name for info in store.list_files("p")] == ["file"]
    assert store.list_directories("p") == []
    assert [info.path for info in store.walk("p")] == ["p/file"]
    with pytest.raises(StorageError, match="symbolic links"):
        store.read("p/itself")


@pytest.mark.parametrize("target", ["p", "."])
def test_a_link_to_a_directory_that_it_lies_in_is_in_no_listing(store: LocalStorage, target: str) -> None:
    """What is there would be listed again and again, as if rows were there so often."""
    store.put("p/file", b"1")
    (store.root / "p" / "up").symlink_to(store.root / target)
    assert store.list_directories("p") == []
    assert [info.path for info in store.walk("")] == ["p/file"]


def test_links_are_followed_but_not_in_a_circle(store: LocalStorage, tmp_path: Path) -> None:
    store.put("p/a", b"1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b").write_bytes(b"2")
    (store.root / "linked").symlink_to(elsewhere)
    (store.root / "p/circle").symlink_to(store.root / "p")
    (store.root / "p/broken").symlink_to(tmp_path / "nothing")
    assert store.read("linked/b") == b"2"
    assert "linked" in store.list_directories("")
    assert sorted(info.path for info in store.walk("")) == ["linked/b", "p/a"]
    (elsewhere / "back").symlink_to(store.root)
    assert store.list_directories("linked") == []
    store.delete_tree("linked")
    assert (elsewhere / "b").exists()


def test_with_fsync_files_and_directories_reach_the_disk_before_a_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    LocalStorage(tmp_path / "plain").put("p/q/a", b"1")
    assert synced == []
    store = LocalStorage(tmp_path / "synced", fsync=True)
    for write in (
        lambda: store.put("p/q/a", b"1"),
        lambda: store.put_if_absent("p/q/b", b"1"),
        lambda: write_output(store, "p/q/c"),
    ):
        synced.clear()
        write()
        assert any(SCRATCH in name for name in synced)
        assert synced[-1] == str(store.root / "p/q")
    store = LocalStorage(tmp_path / "fresh", fsync=True)
    synced.clear()
    store.put("p/q/a", b"1")
    assert {str(store.root / "p"), str(store.root), str(tmp_path)} <= set(synced)


def write_output(store: LocalStorage, path: str) -> None:
    with store.open_output(path) as sink:
        pq.write_table(pa.table({"a": [1]}), sink)


def run_python(script: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


# A process that is stopped between two calls of the system


def test_who_sleeps_while_it_takes_a_scope_does_not_fence_those_who_took_it_since(store: LocalStorage) -> None:
    other = LocalStorage(store.root)
    with pytest.raises(FencedError):
        store.take_scope("work", "1", look=lambda: other.take_scope("work", "2"))
    other.put("a", b"1", scope="work/2")
    assert other.read("a") == b"1"


def test_the_wait_for_a_lock_whose_holder_was_stopped_is_bounded(
    store: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"1")
    seen = store.read_versioned("a")
    assert seen is not None
    monkeypatch.setattr(scratch, "_TIMEOUT_S", 0.01)
    with (store.root / SCRATCH / "publish.lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        store.put("a", b"2")
        with pytest.raises(StorageError, match="probably stopped") as refused:
            store.replace("a", b"3", version=seen.version)
    assert refused.value.transient
    current = store.read_versioned("a")
    assert current is not None
    assert current.data == b"2"
    assert store.replace("a", b"3", version=current.version) is not None
