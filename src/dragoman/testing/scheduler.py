"""Moves the clock and waits for tasks: from one due timer to the next, with time for messages in between.

    advance    move the clock by so much, because the test says so
    result     wait until a task is over. While the hub and all agents only wait, the clock moves by itself to the next
               due timer: a lost answer, a retry, a question without an answer cost no real time

The hub and all agents only wait when no message was on its way for a moment and no handler runs. A handler that is a
coroutine may itself only wait, for another agent for example: then nothing at all happened for longer. Whether a plain
function in its thread waits is unknown: while one runs, the clock does not move by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dragoman.core.commands import Acknowledge
from dragoman.core.ids import ADMIN, SECOND, TaskId
from dragoman.core.model.tasks import QuestionStatus, Waiting
from dragoman.sdk.errors import NotFound
from dragoman.testing.loop import Stuck

if TYPE_CHECKING:
    from dragoman.testing.environment import Environment
    from dragoman.testing.loop import Listener

QUIET = 2
"""Milliseconds in which nothing came, and then nothing is on its way;"""
QUIET_ELSEWHERE = 8
"""where other threads or processes have a part in it."""
NEVER_QUIET = 2.0
"""Seconds after which an agent that sends without end is not waited for."""
REST = 0.25
"""Seconds for a plain function to return, and for what is on its way elsewhere, before time passes nevertheless."""
LOOK = 0.01
"""Seconds between two looks whether a task is over: if nothing came meanwhile, time may pass."""
LONGEST_LOOK = 0.05
"""Of a look that took longer no more counts: the machine stood still, and nothing could come."""
WAITING = 0.5
"""Seconds in which nothing at all happened, and then handlers at work are taken to be waiting for something."""
NOTHING = 1.0
"""Seconds without anything, and without anything that is due: then nothing will come any more."""
TURNS = 5
"""Turns of the loop in which a timer that fired would have sent something."""
WAKE_ROUNDS = 1000


class Scheduler:
    def __init__(self, environment: Environment, listener: Listener) -> None:
        self._environment = environment
        self._listener = listener
        self._moving = asyncio.Lock()

    # --- until nothing is on its way ---

    async def settle(self) -> None:
        environment, loop = self._environment, asyncio.get_running_loop()
        wanted, quiet = QUIET_ELSEWHERE if environment.has_other_threads else QUIET, 0
        end = loop.time() + NEVER_QUIET
        while quiet < wanted and loop.time() < end:
            activity = self._listener.activity
            await asyncio.sleep(0.001)
            if quiet == wanted - 1:  # a commit may be under way; and what was only mentioned goes along with this
                await environment.running.intake.execute(Acknowledge(principal=ADMIN, deliveries=()))
            quiet = 0 if self._listener.activity != activity or environment.is_busy else quiet + 1

    async def come_to_rest(self) -> None:
        """As `settle`, with patience for what other threads and processes do."""
        environment, loop = self._environment, asyncio.get_running_loop()
        end = loop.time() + REST
        await self.settle()
        while loop.time() < end and (
            not all(handler.is_async for handler in environment.at_work) or await self._in_flight_elsewhere()
        ):
            await self.settle()

    async def _in_flight_elsewhere(self) -> int:
        """What is on its way through other threads or processes, where silence means less."""
        return await self._environment.in_flight() if self._environment.has_other_threads else 0

    # --- time ---

    async def advance(self, micros: int) -> None:
        runtime = self._environment.runtime
        async with self._moving:
            await self.come_to_rest()
            end = runtime.instant() + micros
            while (wait := await self._next_wait()) is not None and runtime.instant() + wait <= end:
                await self._move(wait)
            await self._move(end - runtime.instant())
            await self.settle()

    async def _move(self, micros: int) -> None:
        activity = self._listener.activity
        self._environment.runtime.move(micros)
        woken = False
        for _ in range(WAKE_ROUNDS):
            if not await self._environment.running.local.wake_due():
                break
            woken = True
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if self._environment.has_other_threads:
            await asyncio.sleep(0.001)
        if woken or self._listener.activity != activity or self._environment.is_busy:
            await self.settle()

    async def _next_wait(self) -> int | None:
        """Microseconds until the next thing is due, at the hub or with its agents; None if nothing is."""
        waits = [await self._hub_wait()]
        if (seconds := self._environment.runtime.next_due) is not None:
            waits.append(int(seconds * SECOND) + 1)
        return min((wait for wait in waits if wait is not None), default=None)

    async def _hub_wait(self) -> int | None:
        now = self._environment.runtime.instant()
        due = await self._environment.running.intake.store.due(now, 1)
        if due.tasks or due.deliveries or due.agents or due.questions:
            return 0
        return None if due.next_at is None else max(0, due.next_at - now)

    # --- a task's end ---

    async def result(self, task_id: str, patience: float) -> Any:
        environment, loop = self._environment, asyncio.get_running_loop()
        end, calm = loop.time() + patience, 0.0
        while not await self._is_over(task_id):
            environment.raise_noted()
            if loop.time() > end:
                raise await self._stuck(task_id, f"after {patience:g} s (hub.patience)")
            activity, before = self._listener.activity, loop.time()
            await asyncio.sleep(LOOK)
            calm += min(loop.time() - before, LONGEST_LOOK)
            if self._listener.activity != activity or environment.is_busy:
                calm = 0.0
            elif await self._only_waiting(calm):
                if await self._move_until_something_happens(task_id, end):
                    calm = 0.0
                elif calm > NOTHING and not await self._is_over(task_id):
                    raise await self._stuck(task_id, "and nothing is due that could end it")
        environment.raise_noted()
        return (await environment.api.task(task_id)).outcome()

    async def _is_over(self, task_id: str) -> bool:
        await self._environment.hub_is_up.wait()
        task = await self._environment.running.intake.store.task(TaskId(task_id))
        if task is None:
            raise NotFound(f"there is no task {task_id}")
        return task.final

    async def _only_waiting(self, calm: float) -> bool:
        at_work = self._environment.at_work
        if at_work:
            return calm > WAITING and all(handler.is_async for handler in at_work)
        return calm > REST or not await self._in_flight_elsewhere()

    async def _move_until_something_happens(self, task_id: str, end: float) -> bool:
        """From one thing that is due to the next, until the task is over or handlers begin or end. Whether any was."""
        environment, loop = self._environment, asyncio.get_running_loop()
        async with self._moving:
            await self.settle()
            at_work, in_flight, passed = environment.at_work, await self._in_flight_elsewhere(), False
            while (
                not environment.has_errors
                and environment.at_work == at_work
                and await self._in_flight_elsewhere() <= in_flight
                and loop.time() < end
                and not await self._is_over(task_id)
                and not await self._waits_for_ever(task_id)
                and (wait := await self._next_wait()) is not None
            ):
                await self._move(wait)
                passed = True
            return passed

    async def _waits_for_ever(self, task_id: str) -> bool:
        """Whether it waits for a person who has no end of time to answer."""
        store, id = self._environment.running.intake.store, TaskId(task_id)
        task = await store.task(id)
        if task is None or task.waiting is not Waiting.PERSON:
            return False
        asked = await store.questions(status=QuestionStatus.OPEN, task=id)
        return all(question.wake_at is None for question in asked)

    async def _stuck(self, task_id: str, how: str) -> Stuck:
        why = await self._environment.api.why(task_id)
        sentences = [f"task {task_id} is not over {how}; it is {why['status']}.", why["summary"]]
        if why.get("waiting") == Waiting.PERSON.value:
            sentences.append('Have the person answer: hub.human.answers("…").')
        elif self._environment.at_work:
            sentences.append(
                "A handler is at work. If it waits for time to pass, let it: hub.submit(…), hub.clock.advance(seconds),"
                " hub.result(…). (asyncio.sleep waits for real; hub.clock.sleep does not.)"
            )
        return Stuck(" ".join(sentences))
