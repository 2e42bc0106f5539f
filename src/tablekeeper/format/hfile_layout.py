"""The layout of HFile version 3, as reader and writer share it.

A stored key is its length, its text, and fields that HBase has and the metadata table does not: always the same bytes.
"""

from __future__ import annotations

import struct

__all__ = [
    "BYTES_PER_CHECKSUM",
    "DATA_MAGIC",
    "ENTRY_HEAD",
    "FILE_INFO_MAGIC",
    "GZIP",
    "HEADER",
    "INDEX_ENTRY",
    "INTERMEDIATE_INDEX_MAGIC",
    "KEY_TAIL",
    "LEAF_INDEX_MAGIC",
    "MAJOR_VERSION",
    "PLAIN",
    "PROTOBUF_MAGIC",
    "ROOT_INDEX_MAGIC",
    "TRAILER_MAGIC",
    "TRAILER_SIZE",
]

DATA_MAGIC = b"DATABLK*"
ROOT_INDEX_MAGIC = b"IDXROOT2"
INTERMEDIATE_INDEX_MAGIC = b"IDXINTE2"
LEAF_INDEX_MAGIC = b"IDXLEAF2"
FILE_INFO_MAGIC = b"FILEINF2"
TRAILER_MAGIC = b'TRABLK"$'
PROTOBUF_MAGIC = b"PBUF"

TRAILER_SIZE = 4096
MAJOR_VERSION = 3
BYTES_PER_CHECKSUM = 16 * 1024
GZIP, PLAIN = 1, 2

HEADER = struct.Struct(">8siiqBii")
ENTRY_HEAD = struct.Struct(">iih")
INDEX_ENTRY = struct.Struct(">qi")
_LATEST_TIMESTAMP = (1 << 63) - 1
KEY_TAIL = struct.pack(">BqB", 0, _LATEST_TIMESTAMP, 4)
