"""Requests to execute plans, taken together: one query and one transaction for all that come at about the same time.

A round takes whatever waits when it begins, and what comes while rounds are under way waits for the next one. So a lone
request waits for nobody, and the more there are the less each costs. Each is answered once its transaction is durable.
Timelines are looked at one by one on threads: a store that hangs holds up the requests about its tables, and no others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.api.writers import (
    AskedPlans,
    JudgedPlan,
    SubmitRequest,
    SubmittedPlan,
    WriterCalls,
    must_look,
    tell_stored,
)
from tablekeeper.server.model import ServiceAction
from tablekeeper.server.store.protocol import (
    JobStore,
    KnownPlans,
    NamedPlans,
    Submission,
    Submitted,
    UnknownRecordError,
)

__all__ = ["Gathered", "GatheredSubmits"]

A = TypeVar("A")
B = TypeVar("B")

# Another one may have to wait for a lock that an instance holds which was put to sleep.
_ROUNDS = 2
_MOST_AT_ONCE = 200
_MOST_PLANS = 2000


class Gathered(Generic[A, B]):
    """Turns single questions into rounds of many. `answer` runs on a thread; what it raises goes to all who asked."""

    def __init__(self, answer: Callable[[Sequence[A]], Sequence[B]], *, size: Callable[[A], int]) -> None:
        self._answer = answer
        self._size = size
        self._waiting: deque[tuple[A, asyncio.Future[B]]] = deque()
        self._rounds: set[asyncio.Task[None]] = set()

    async def ask(self, question: A) -> B:
        """The answer, from the next round."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[B] = loop.create_future()
        self._waiting.append((question, future))
        if len(self._rounds) < _ROUNDS:
            task = loop.create_task(self._take_rounds())
            self._rounds.add(task)
            task.add_done_callback(self._rounds.discard)
        return await future

    async def _take_rounds(self) -> None:
        while self._waiting:
            taken = self._take()
            try:
                answers = await run_in_threadpool(self._answer, [question for question, _ in taken])
            except Exception as error:  # noqa: BLE001 (it is raised where each of them is awaited)
                for _, future in taken:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(taken, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def _take(self) -> list[tuple[A, asyncio.Future[B]]]:
        """At least one, and no more than what one statement can bear."""
        taken = [self._waiting.popleft()]
        plans = self._size(taken[0][0])
        while self._waiting and len(taken) < _MOST_AT_ONCE:
            plans += self._size(self._waiting[0][0])
            if plans > _MOST_PLANS:
                break
            taken.append(self._waiting.popleft())
        return taken


class GatheredSubmits:
    """`WriterCalls.submit` for the routes of REST."""

    def __init__(self, store: JobStore, writers: WriterCalls) -> None:
        self._writers = writers
        self._store = store
        self._found: Gathered[NamedPlans, KnownPlans] = Gathered(
            store.find_plans, size=lambda named: len(named.instants)
        )
        self._stored: Gathered[Sequence[Submission], Sequence[Submitted | UnknownRecordError]] = Gathered(
            self._submit_all, size=len
        )

    async def submit(self, caller: Caller, action: ServiceAction, request: SubmitRequest) -> list[SubmittedPlan]:
        """Execute these plans. It refuses what `WriterCalls.submit` refuses."""
        asked = self._writers.asked(caller, action, request)
        known = await self._found.ask(asked.named)
        judged = await self._judged(asked, known)
        wanted = [each for each in judged if isinstance(each, Submission)]
        return tell_stored(judged, await self._stored.ask(wanted) if wanted else [])

    async def _judged(self, asked: AskedPlans, known: KnownPlans) -> list[JudgedPlan]:
        if must_look(asked, known):
            return await run_in_threadpool(self._writers.judge, asked, known)
        return self._writers.judge(asked, known)

    def _submit_all(self, wanted: Sequence[Sequence[Submission]]) -> list[Sequence[Submitted | UnknownRecordError]]:
        """All of them in one transaction; what became of those of each request."""
        answers = iter(self._store.submit_all([each for submissions in wanted for each in submissions]))
        return [[next(answers) for _ in submissions] for submissions in wanted]
