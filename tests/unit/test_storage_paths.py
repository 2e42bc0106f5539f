"""Paths inside stores and URIs of stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablekeeper.errors import InvalidRequestError
from tablekeeper.storage import StorageSpec, canonical_uri, hadoop_path
from tablekeeper.storage.protocol import checked_path, local_path

LOCAL_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("/a/b", "file:///a/b"),
        ("/a/b/", "file:///a/b"),
        ("//a//b", "file:///a/b"),
        ("/a/./b/../c", "file:///a/c"),
        ("file:///a/b", "file:///a/b"),
        ("file:/a/b", "file:///a/b"),
        ("file://localhost/a/b/", "file:///a/b"),
        ("FILE:///a/b", "file:///a/b"),
        ("file:///a/with%20space", "file:///a/with%20space"),
        ("file:///a/with space", "file:///a/with%20space"),
        ("/a/with%20percent", "file:///a/with%2520percent"),
        ("/a/dt=2024-01-01", "file:///a/dt%3D2024-01-01"),
        ("/", "file:///"),
        ("memory://lake/t/", "memory://lake/t"),
        ("memory://lake", "memory://lake"),
        ("s3://bucket/t/", "s3://bucket/t"),
        ("s3a://bucket//a//b", "s3://bucket/a/b"),
        ("S3N://bucket/a%20b", "s3://bucket/a%20b"),
        ("s3://bucket", "s3://bucket"),
        ("gs://bucket/t", "gs://bucket/t"),
        ("gcs://bucket/t", "gs://bucket/t"),
        ("abfs://box@acc.dfs.core.windows.net/t", "abfss://box@acc.dfs.core.windows.net/t"),
        ("az://box/t", "az://box/t"),
    ],
)
def test_every_spelling_has_one_canonical_uri(written: str, canonical: str) -> None:
    assert canonical_uri(written) == canonical
    assert canonical_uri(canonical) == canonical


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/people/ana")
    assert canonical_uri("lake/t") == (tmp_path / "lake/t").as_uri()
    assert canonical_uri("../t") == (tmp_path.parent / "t").as_uri()
    assert canonical_uri(Path("lake/t")) == (tmp_path / "lake/t").as_uri()
    assert canonical_uri(".") == tmp_path.as_uri()
    assert canonical_uri("~/lake") == "file:///people/ana/lake"


def test_a_path_object_is_never_taken_for_a_uri() -> None:
    assert local_path(canonical_uri(Path("/x/s3://bucket/t"))) == Path("/x/s3:/bucket/t")


@given(st.lists(LOCAL_NAMES.filter(lambda name: name not in {".", ".."}), min_size=1, max_size=4))
def test_any_local_path_survives_the_way_through_its_uri(names: list[str]) -> None:
    path = "/" + "/".join(names)
    uri = canonical_uri(path)
    assert str(local_path(uri)) == path
    assert canonical_uri(uri) == uri
    assert hadoop_path(StorageSpec(uri), "p/a") == f"file://{path}/p/a"


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("", "is empty"),
        ("hdfs://host/a", "Known schemes: file, memory, s3"),
        ("http://host/a", "no store for the scheme 'http'"),
        ("s3:/bucket/a", "s3://name/path"),
        ("s3:///a", "s3://name/path"),
        ("s3://", "names no store"),
        ("s3://bucket/../a", "without `.`"),
        ("memory:///", "memory://name/path"),
        ("file://host/a", "names the host 'host'"),
    ],
)
def test_what_names_no_store_is_refused_with_a_hint(written: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        canonical_uri(written)
    assert hint in str(caught.value)


def test_spark_gets_the_names_it_knows() -> None:
    assert hadoop_path(StorageSpec("s3://bucket/t"), "p/a.parquet") == "s3a://bucket/t/p/a.parquet"
    assert hadoop_path(StorageSpec("s3://bucket/t")) == "s3a://bucket/t"
    assert hadoop_path(StorageSpec("gs://bucket/t"), "a") == "gs://bucket/t/a"
    assert hadoop_path(StorageSpec(canonical_uri("/a/b c%")), "city=x%2Fy") == "file:///a/b c%/city=x%2Fy"


@given(st.text(max_size=12))
def test_a_path_is_legal_only_if_it_stays_inside(path: str) -> None:
    legal = bool(path) and "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))
    if legal:
        assert checked_path(path) == path
    else:
        with pytest.raises(InvalidRequestError):
            checked_path(path)
