"""What the processes of one run have in common: for additions that are more than a job, such as a service.

A `Worker` has it as `world`. Whatever several processes share besides the table, such as a database, is kept in
`shared` under its type, and an invariant finds it in `watch.shared`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from tablekeeper.testing.history import History
from tablekeeper.testing.loop import Fiber, Loop
from tablekeeper.testing.process import Process
from tablekeeper.testing.store import SimulatedStorage
from tablekeeper.testing.story import Story
from tablekeeper.testing.watch import Post, Watch

__all__ = ["SPACE", "URI", "World"]

T = TypeVar("T")

SPACE = "simulation"
URI = f"memory://{SPACE}/table"


class World:
    """One run: its scheduler, its witness, and what was told."""

    def __init__(self, history: History, *, loop: Loop, watch: Watch, story: Story) -> None:
        self.history = history
        self.loop = loop
        self.watch = watch
        self.story = story

    def shared(self, kind: Callable[[World], T]) -> T:
        """The one thing of this type, made when somebody asks for it first."""
        if kind not in self.watch.shared:
            self.watch.shared[kind] = kind(self)
        found: T = self.watch.shared[kind]
        return found

    def process(
        self, name: str, *, actor: str = "", skew_s: float = 0.0, parallel: bool = False, host: str = ""
    ) -> Process:
        """A process that does nothing yet. Faults hit it as the actor of that name."""
        process = Process(self.loop, name, seed=name, skew_s=skew_s, parallel=parallel, host=host)
        self.watch.posts[name] = Post(actor or name)
        return process

    def storage_of(self, process: Process) -> SimulatedStorage:
        """The store of the table as this process has it."""
        return SimulatedStorage(URI, process, self.watch, has_scopes=self.history.shape.has_scopes)

    def start(self, process: Process, run: Callable[[], object]) -> Fiber:
        """Let it run: the history goes on until it has ended. What it raises is a complaint."""

        def live() -> None:
            try:
                run()
            except Exception as error:
                self.broke(process.name, error)

        return self.loop.spawn(process, process.name, live, is_main=True)

    def broke(self, name: str, error: BaseException) -> None:
        """Something was raised that nobody expects."""
        trace = "".join(traceback.format_exception(error)[-3:])
        self.story.complain("broken", f"{name} raised {type(error).__name__}: {error}\n{trace}")
