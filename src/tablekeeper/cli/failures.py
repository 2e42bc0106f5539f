"""How commands fail: one red line on stderr and exit code 1, never a traceback unless asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from tablekeeper.cli.escapes import escaped
from tablekeeper.errors import TablekeeperError

__all__ = ["reported"]

P = ParamSpec("P")
R = TypeVar("R")

_FAILED = 1


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """`command`, with its errors reported. A command that has a parameter `debug` lets them out when it is set."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (typer.BadParameter, typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except TablekeeperError as error:
            message = str(error)
            failure: Exception = error
        except Exception as error:  # noqa: BLE001 (the outermost place: whatever comes here is reported, not swallowed)
            message = f"unexpected {type(error).__name__}: {error}. Run again with --debug to see where it comes from."
            failure = error
        if kwargs.get("debug"):
            raise failure
        _print_error(message)
        raise typer.Exit(_FAILED)

    return run


def _print_error(message: str) -> None:
    line = Text("error: ", style="bold red").append(escaped(" ".join(message.split())), style="red")
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)
