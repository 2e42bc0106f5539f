"""Names of log files."""

from __future__ import annotations

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.data_files import LogName, decode_log_name, encode_log_name

__all__: list[str] = []

FILE_ID = "9b0c9a0e-95a8-4a39-8b28-7e0d7b2c0001-0"


def test_a_name_decodes_to_the_parts_it_was_made_of() -> None:
    name = encode_log_name(file_id=FILE_ID, instant="20260102030405006", version=2, write_token="1-0-7")
    assert name == f".{FILE_ID}_20260102030405006.log.2_1-0-7"
    assert decode_log_name(name) == LogName(FILE_ID, "20260102030405006", 2, "1-0-7", is_cdc=False)


def test_names_of_cdc_files_and_of_old_writers_decode() -> None:
    cdc = decode_log_name(f".{FILE_ID}_20260102030405006.log.1_0-0-0.cdc")
    assert cdc == LogName(FILE_ID, "20260102030405006", 1, "0-0-0", is_cdc=True)
    assert decode_log_name(".f_001.log.3") == LogName("f", "001", 3, "", is_cdc=False)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "f_001.log.1_0-0-0",
        ".f_001.log.1_0-0-0.crc",
        "..f_001.log.1_0-0-0",
        ".f_001.archive.1_0-0-0",
        ".f_001.log.x_0-0-0",
        ".f_001.log.1_0-0",
        ".f_now.log.1_0-0-0",
        ".f_001.log.1_0-0-0\n",
        "p/.f_001.log.1_0-0-0",
        f"{FILE_ID}_0-0-0_001.parquet",
        ".hoodie_partition_metadata",
    ],
)
def test_a_name_of_another_shape_is_no_log_file(name: str) -> None:
    assert decode_log_name(name) is None


@pytest.mark.parametrize(
    ("file_id", "instant", "version", "write_token"),
    [("a_b", "001", 1, "0-0-0"), ("f", "soon", 1, "0-0-0"), ("f", "001", -1, "0-0-0"), ("f", "001", 1, "0")],
)
def test_parts_that_make_no_log_file_name_are_refused(
    file_id: str, instant: str, version: int, write_token: str
) -> None:
    with pytest.raises(InvalidRequestError, match="no log file name"):
        encode_log_name(file_id=file_id, instant=instant, version=version, write_token=write_token)
