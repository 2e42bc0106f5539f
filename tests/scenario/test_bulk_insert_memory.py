"""A bulk insert in a process whose memory is limited, as Spark limits its Python workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.runtime import FRUGAL_ENVIRONMENT

# The rows come as Spark sends them, from a stream, so that the columns of a batch share one piece of memory. There are
# more of them than may be held: 250 MB, where the process may grow by 200 MiB.
BULK_INSERT = """
import os, resource, sys
import numpy as np
import pyarrow as pa
import tablekeeper as tk
from tablekeeper.runtime import memory_left_bytes

path, partitions, rows, width = sys.argv[1], *map(int, sys.argv[2:])
schema = pa.schema([("id", pa.string()), ("city", pa.string()), ("text", pa.string())])
table = tk.Table.create(path, name="t", schema=schema, key="id", partition_by="city", engine="local",
                        options={"hoodie.metadata.enable": "false", "hoodie.parquet.max.file.size": str(1 << 30)})
source, sink = os.pipe()
if os.fork() == 0:
    os.close(source)
    letters = np.random.default_rng(1)
    with os.fdopen(sink, "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for start in range(0, rows, 10_000):
            numbers = np.arange(start, start + 10_000)
            raw = letters.integers(97, 123, 10_000 * width, dtype=np.uint8)
            ends = np.arange(0, (10_000 + 1) * width, width, dtype=np.int32)
            text = pa.StringArray.from_buffers(10_000, pa.py_buffer(ends), pa.py_buffer(raw))
            columns = [pa.array(numbers).cast(pa.string()), pa.array(numbers % partitions).cast(pa.string()), text]
            stream.write_batch(pa.record_batch(columns, schema=schema))
    os._exit(0)
os.close(sink)
table.bulk_insert(pa.table({"id": ["warm"], "city": ["up"], "text": ["x"]}, schema=schema))
used = (1 << 50)
resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
used -= memory_left_bytes()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
with os.fdopen(source, "rb") as file, pa.ipc.open_stream(file) as reader:
    print(table.bulk_insert(reader).rows_inserted)
"""


@pytest.mark.parametrize(
    ("partitions", "rows", "width"),
    [(1, 250_000, 1000), (10, 250_000, 1000), (100, 250_000, 1000)],
    ids=["one partition", "ten partitions", "scattered"],
)
def test_a_bulk_insert_holds_no_more_than_its_process_may(
    tmp_path: Path, partitions: int, rows: int, width: int
) -> None:
    path = str(tmp_path / "table")
    command = [sys.executable, "-c", BULK_INSERT, path, str(partitions), str(rows), str(width)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **FRUGAL_ENVIRONMENT}
    )
    assert done.stdout.split() == [str(rows)], done.stderr
    assert tk.Table.open(path, engine="local").read(columns=["id"]).num_rows == rows + 1
