"""`python -m tablekeeper`: the commands, for those whose PATH does not have `tablekeeper`."""

from __future__ import annotations

from tablekeeper.cli.main import app

__all__: list[str] = []

if __name__ == "__main__":
    app(prog_name="python -m tablekeeper")
