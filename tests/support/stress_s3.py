"""An S3 server as a process of its own: says where it is on one line, and ends with its input.

python -m tests.support.stress_s3 BUCKET
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.moto_server import moto_server

__all__ = ["s3_process"]

ROOT = Path(__file__).parents[2]


@contextmanager
def s3_process(bucket: str) -> Iterator[dict[str, str]]:
    """Storage options for a server with one empty bucket, which lives as long as the block."""
    command = [sys.executable, "-m", "tests.support.stress_s3", bucket]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def main() -> None:
    with moto_server() as server:
        server.create_bucket(sys.argv[1])
        sys.stdout.write(json.dumps(server.options) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
