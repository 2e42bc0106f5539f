"""How much memory this process may still take, where somebody set a bound for it.

Spark enforces `spark.executor.pyspark.memory` by a limit on the address space of its Python workers. Libraries and
thread stacks count against it, and so does what an allocator reserves and does not use. What is left is known only in
the worker, so that kernels ask there and hold less than they would otherwise.
"""

from __future__ import annotations

import resource
from pathlib import Path

__all__ = ["FRUGAL_ENVIRONMENT", "memory_left_bytes"]

FRUGAL_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
}
"""Lets a process reserve little memory in advance and give back what it frees; to be set before it starts.

Arrow's own allocator reserves at least 128 MiB at once, and the system's 64 MiB for each thread.
"""

_STATM = Path("/proc/self/statm")


def memory_left_bytes() -> int | None:
    """How far the address space of this process may grow; None if there is no limit, or no way to tell."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or not _STATM.exists():
        return None
    used = int(_STATM.read_text().split()[0]) * resource.getpagesize()
    return max(0, limit - used)
