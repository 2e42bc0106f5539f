"""From what users write to a store."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.storage import LocalStorage, MemoryStorage, StorageSpec, open_storage
from tests.support.fake_runtime import fake_runtime


def test_every_spelling_of_one_place_opens_one_store(tmp_path: Path) -> None:
    store = open_storage(tmp_path)
    assert isinstance(store, LocalStorage)
    assert open_storage(str(tmp_path)) is store
    assert open_storage(f"{tmp_path}/") is store
    assert open_storage(tmp_path.as_uri()) is store
    assert open_storage(store.spec) is store
    assert open_storage(pickle.loads(pickle.dumps(store.spec))) is store


def test_other_options_or_another_runtime_open_another_store(tmp_path: Path) -> None:
    runtime, _ = fake_runtime()
    store = open_storage(tmp_path)
    synced = open_storage(tmp_path, options={"fsync": "true"})
    assert synced is not store
    assert synced.spec.options == {"fsync": "true"}
    assert open_storage(synced.spec) is synced
    assert open_storage(tmp_path, runtime=runtime) is not store


def test_options_are_added_to_those_of_a_spec(tmp_path: Path) -> None:
    spec = StorageSpec(tmp_path.as_uri(), {"fsync": "true"})
    assert open_storage(spec).spec.options == {"fsync": "true"}
    assert open_storage(spec, options={"fsync": "false"}).spec.options == {}


def test_memory_stores_are_opened_by_name() -> None:
    store = open_storage("memory://some/table")
    assert isinstance(store, MemoryStorage)
    assert store.spec == StorageSpec("memory://some/table")


@pytest.mark.parametrize(
    ("location", "options", "hint"),
    [
        ("/a", {"region": "x"}, "unknown storage options: region. Known for this store: fsync"),
        ("/a", {"fsync": "perhaps"}, "Use true or false"),
        ("memory://a", {"fsync": "true"}, "unknown storage options: fsync"),
        ("s3://b/t", {"regoin": "x"}, "'regoin' is not valid"),
        ("s3://b/t", {"timeout": "soon"}, "soon"),
        ("abfss://box@/t", {}, "abfss://container@account.dfs.core.windows.net/path"),
    ],
)
def test_a_wrong_option_is_refused_by_name(location: str, options: dict[str, str], hint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        open_storage(location, options=options)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("location", "options"),
    [
        ("gs://bucket/t", {"skip_signature": "true"}),
        ("abfss://box@acc.dfs.core.windows.net/t", {"account_key": "a2V5"}),
        ("abfss://box@acc.dfs.core.windows.net/t", {"azure_storage_account_name": "other", "account_key": "a2V5"}),
        ("az://box/t", {"ACCOUNT_NAME": "acc", "account_key": "a2V5"}),
    ],
)
def test_google_and_azure_stores_open_with_their_options(location: str, options: dict[str, str]) -> None:
    store = open_storage(location, options=options)
    assert store.spec == StorageSpec(location, options)


def test_a_spec_does_not_show_its_secrets() -> None:
    assert "hush" not in repr(StorageSpec("s3://b/t", {"aws_secret_access_key": "hush"}))


def test_a_missing_client_library_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tablekeeper.storage.object_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InvalidRequestError, match=r"pip install 'tablekeeper\[object-store\]'"):
        open_storage("s3://never-opened-before/t")
