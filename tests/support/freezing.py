"""Processes that are stopped in their tracks, as by a laptop's lid or a paused virtual machine."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

__all__ = ["freeze", "thaw"]


def freeze(process: subprocess.Popen[Any]) -> None:
    """Stop a child, and return when it has stopped: a signal is sent long before every thread has obeyed it."""
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"the process ended instead of stopping: {status}"


def thaw(process: subprocess.Popen[Any]) -> None:
    """Let it go on as if no time had passed."""
    process.send_signal(signal.SIGCONT)
