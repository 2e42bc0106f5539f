"""Record keys, simple and composite, and the values that the bucket index hashes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.keys import KeySpec, bucket_field_values, record_keys

ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "name": ["a", "", None],
        "at": pa.array([10, 20, 30], pa.timestamp("us", "UTC")),
        "user": pa.array([{"id": 7}, {"id": 8}, None]),
    }
)


def test_a_simple_key_is_the_bare_value() -> None:
    assert record_keys(ROWS, KeySpec(("id",), composite=False)).to_pylist() == ["1", "2", "3"]


def test_a_simple_key_from_a_string_column_is_not_copied() -> None:
    batch = pa.record_batch({"k": ["a", "b"]})
    keys = record_keys(batch, KeySpec(("k",), composite=False))
    assert keys.buffers()[2].address == batch.column(0).buffers()[2].address


def test_a_composite_key_names_its_fields_and_marks_missing_parts() -> None:
    keys = record_keys(ROWS, KeySpec(("id", "name", "at"), composite=True))
    assert keys.to_pylist() == ["id:1,name:a,at:10", "id:2,name:__empty__,at:20", "id:3,name:__null__,at:30"]


def test_a_composite_key_of_one_field_names_the_field() -> None:
    assert record_keys(ROWS, KeySpec(("id",), composite=True)).to_pylist() == ["id:1", "id:2", "id:3"]


def test_a_nested_field_is_named_by_its_path() -> None:
    keys = record_keys(ROWS, KeySpec(("id", "user.id"), composite=True))
    assert keys.to_pylist() == ["id:1,user.id:7", "id:2,user.id:8", "id:3,user.id:__null__"]


def test_record_batches_and_tables_give_the_same_keys() -> None:
    spec = KeySpec(("id", "name"), composite=True)
    assert record_keys(ROWS.to_batches()[0], spec).equals(record_keys(ROWS, spec))


def test_no_rows_give_no_keys() -> None:
    assert record_keys(ROWS.slice(0, 0), KeySpec(("id", "name"), composite=True)).to_pylist() == []


def test_null_and_empty_simple_keys_are_counted_and_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^2 of 3 rows have a null or empty record key \(column name\)"):
        record_keys(ROWS, KeySpec(("name",), composite=False))


def test_a_composite_key_without_any_part_is_refused() -> None:
    rows = pa.table({"a": ["", "x"], "b": pa.array([None, None], pa.int64())})
    with pytest.raises(InvalidRequestError, match=r"^1 of 2 rows .*columns a, b"):
        record_keys(rows, KeySpec(("a", "b"), composite=True))


@pytest.mark.parametrize(
    ("field", "hint"),
    [("idd", "did you mean id?"), ("user.idd", "did you mean user.id?"), ("zzz", "its columns are: id")],
)
def test_a_missing_key_column_is_named_with_the_nearest_one(field: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        record_keys(ROWS, KeySpec((field,), composite=False))
    assert f"no column {field}" in str(refused.value)
    assert hint in str(refused.value)


def test_a_key_needs_a_column_and_several_columns_need_the_composite_form() -> None:
    with pytest.raises(InvalidRequestError, match="at least one key column"):
        KeySpec((), composite=False)
    with pytest.raises(InvalidRequestError, match="composite"):
        KeySpec(("a", "b"), composite=False)


def test_bucket_values_are_the_texts_of_the_fields() -> None:
    values = bucket_field_values(ROWS, ("id", "name"))
    assert [column.to_pylist() for column in values] == [["1", "2", "3"], ["a", "", None]]


def test_bucket_values_out_of_a_key_have_the_order_of_the_key() -> None:
    key = KeySpec(("id", "name"), composite=True)
    values = bucket_field_values(ROWS, ("name", "id"), key=key)
    assert [column.to_pylist() for column in values] == [["1", "2", "3"], ["a", "", None]]


def test_a_composite_key_of_one_field_is_hashed_whole_unless_java_takes_it_apart() -> None:
    rows = pa.table({"k": ["x", "a,b"]})
    values = bucket_field_values(rows, ("k",), key=KeySpec(("k",), composite=True))
    assert [column.to_pylist() for column in values] == [["k:x", "a,b"]]


def test_bucket_values_that_look_like_missing_parts_are_taken_for_them_as_java_does() -> None:
    rows = pa.table({"k": ["__null__", "__empty__", None, "", "x"], "n": [1, 2, 3, 4, 5]})
    values = bucket_field_values(rows, ("k",), key=KeySpec(("k", "n"), composite=True))
    assert [column.to_pylist() for column in values] == [[None, "", None, "", "x"]]
