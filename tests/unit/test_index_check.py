"""Which file groups fit the index that a writer is told of, by their names alone."""

from __future__ import annotations

import pytest

from tablekeeper.config.options import Options
from tablekeeper.config.write_settings import WriteSettings
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import FileGroupId, FileSlice, RequestedTime
from tablekeeper.write.layout_checks import refuse_wrong_index
from tests.support.write_context import make_context

REST = "b044-4af1-9d4d-0c3a5e2b1f00-0"


def slices(*names: str) -> list[FileSlice]:
    """Slices without files, `partition/first eight characters` each."""
    made = []
    for name in names:
        partition, _, start = name.rpartition("/")
        group = FileGroupId(partition, f"{start}-{REST}")
        instant = RequestedTime("20240101000000000")
        made.append(FileSlice(group, instant, None))
    return made


def check(index: str, *names: str, buckets: int = 4) -> None:
    options = Options({"hoodie.index.type": index, "hoodie.bucket.index.num.buckets": buckets})
    context = make_context(settings=WriteSettings.of_table(options.given, key_fields=("id",)))
    refuse_wrong_index(context, slices(*names))


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("p/a1b2c3d4",),
        ("p/12345678",),
        ("p/00000003", "p/a1b2c3d4"),
        ("p/00000003", "p/00000003"),
        ("p/00000003", "q/99999999"),
    ],
)
def test_random_ids_fit_a_plain_writer_also_when_one_of_them_looks_like_a_bucket(names: tuple[str, ...]) -> None:
    check("SIMPLE", *names)


@pytest.mark.parametrize("names", [("p/00000000",), ("p/00000000", "p/00000003"), ("p/00000003", "q/00000003")])
def test_ids_that_are_all_small_numbers_are_buckets_and_not_for_a_plain_writer(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError, match=r"hoodie\.bucket\.index\.num\.buckets"):
        check("SIMPLE", *names)


@pytest.mark.parametrize("names", [(), ("p/00000000", "p/00000003", "q/00000003")])
def test_small_numbers_fit_a_bucket_writer(names: tuple[str, ...]) -> None:
    check("BUCKET", *names)


@pytest.mark.parametrize(
    ("name", "message"),
    [("p/a1b2c3d4", "is no bucket"), ("p/12345678", "is no bucket"), ("p/00000004", "num.buckets is 4, but")],
)
def test_other_ids_and_numbers_do_not_fit_a_bucket_writer(name: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check("BUCKET", "p/00000001", name)


def test_a_large_number_of_buckets_is_possible() -> None:
    check("BUCKET", "p/00019999", buckets=20_000)


def test_two_groups_of_one_bucket_leave_open_where_a_row_belongs() -> None:
    with pytest.raises(InvalidRequestError, match="are both bucket 1"):
        check("BUCKET", "p/00000001", "p/00000001")
