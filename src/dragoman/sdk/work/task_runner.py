"""Runs tasks: from the request to the outcome.

    a request   that is                            then
    ----------  ---------------------------------  --------------------------------------------------------
    unknown     -                                  run its handler
    known       running                            the repetition joins it; a sign of life is sent
    known       finished                           the first result is sent again
    known       with other content                 declined: one id cannot mean two things
    unknown     an answer to a task in hand        the handler goes on
    unknown     a task in hand, without answer     started over: the old run is cancelled, then this one runs
    unknown     an answer to a task not in hand    the handler runs again, and gets all answers so far

A runner knows no link and no protocol. It sends through the outbox and remembers in the journal.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from dragoman.messages import tasks
from dragoman.messages.faults import Fault, Kind
from dragoman.sdk import trace
from dragoman.sdk.errors import BadInput, Reject, Retry
from dragoman.sdk.links import Bring, Introduction
from dragoman.sdk.messages import Answer, Assignment, Correlation, Decline, Outcome
from dragoman.sdk.program import user_frames
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work import outcome as ends
from dragoman.sdk.work.journal import Answered, Journal
from dragoman.sdk.work.outbox import Outbox
from dragoman.sdk.work.reporter import Reporter
from dragoman.sdk.work.running_task import RunningTask, Slots, WorkStats
from dragoman.sdk.work.signature import Handler
from dragoman.sdk.work.task import CallNext, Middleware, SyncTask, Task

if TYPE_CHECKING:
    from dragoman.sdk.conversation.peer_requests import PeerRequests

log = logging.getLogger("dragoman.sdk")

HEALTH_CHECK = "health_check"
MOST_ASKING = 1000
"""Threads beyond those that run: a plain function that waits for an answer keeps its own. They are made when needed."""

_canonical = msgspec.json.Encoder(order="sorted").encode


class TaskRunner:
    def __init__(
        self,
        who: Introduction,
        handlers: Mapping[str, Handler],
        outbox: Outbox,
        journal: Journal,
        runtime: Runtime,
        connect_peers: Callable[[TaskRunner], PeerRequests],
        bring: Bring | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._who = who
        self._middleware = middleware
        self._handlers = handlers
        self._outbox = outbox
        self._journal = journal
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._by_request: dict[str, RunningTask] = {}
        self._slots = Slots(who.concurrency)
        self._background: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self.reporter = Reporter(outbox, journal, runtime, self._slots, self._peer_message_accepted, bring)
        self.stats = WorkStats(runtime)
        self.tasks: dict[str, RunningTask] = {}
        """By task id: running, waiting for a person, or waiting for a free slot."""
        self.peer_requests = connect_peers(self)
        """What tasks ask of other agents."""
        self.busy = asyncio.Event()
        """Set as soon as there is a task; the waiter clears it."""

    def _peer_message_accepted(self, id: str) -> None:
        self.peer_requests.accepted(id)

    # --- requests ---

    def take(self, work: Assignment, *, closing: bool = False) -> None:
        """A request came. When `closing`, only tasks that the runner has already are served; others stay with the
        hub."""
        handler = self._handlers.get(work.type)
        if handler is None:
            return self._refuse_unknown(work)
        correlation = work.correlation
        print = _print(work)
        known = self._by_request.get(correlation.request_id)
        if known is not None:
            self._outbox.acknowledge(work.receipt)
            return self.reporter.sign_of_life(known) if known.print == print else self._refuse_other_content(work)
        done = self._journal.recall(correlation.request_id)
        if done is not None:
            self._outbox.acknowledge(work.receipt)
            return self._outbox.enqueue(done.outcome) if done.print == print else self._refuse_other_content(work)
        if not work.is_new_round and (owed := self._owed(correlation.task_id)) is not None:
            self._outbox.acknowledge(work.receipt)
            return self._outbox.enqueue(owed)
        in_hand = self.tasks.get(correlation.task_id)
        given, has_answer = _without_answer(work, handler, is_asking=in_hand is not None and in_hand.asking is not None)
        if in_hand is not None and has_answer:
            self._outbox.acknowledge(work.receipt)
            return self._start(self._go_on(in_hand, work, print))
        if closing:
            return None
        try:
            arguments = handler.bind(given)
        except BadInput as error:
            self._outbox.acknowledge(work.receipt)
            return self._decline(work.correlation, Fault(kind=Kind.INVALID, message=error.what, field=error.field))
        task = RunningTask(work, given, print)
        task.last_sign = self._runtime.monotonic()
        self._by_request[correlation.request_id] = task
        self.tasks[task.id] = task
        self.busy.set()
        self._outbox.acknowledge_soon(task)
        if in_hand is None and not has_answer and not self._journal.has_answers(task.id):
            return self._begin(task, handler, arguments)
        return self._start(self._begin_after(in_hand, task, handler, arguments, has_answer))

    def _owed(self, task_id: str) -> Outcome | None:
        """The result of a task that the hub does not have yet, and so assigned again."""
        return next((kept for kept in self._outbox.about(task_id=task_id) if type(kept) is Outcome), None)

    def _refuse_unknown(self, work: Assignment) -> None:
        self._outbox.acknowledge(work.receipt)
        if work.type == HEALTH_CHECK:
            return self._outbox.enqueue(self._outcome(work.correlation, tasks.Result(exit_code=0, output="ok"), 0.0))
        fault = Fault(
            kind=Kind.UNSUPPORTED_WORK,
            message=f"{self._who.agent_id} does not do {work.type}",
            facts={"work_type_requested": work.type, "supported_types": self._who.work_types},
        )
        return self._decline(work.correlation, fault)

    def _refuse_other_content(self, work: Assignment) -> None:
        message = "this request id was used for other content before"
        self._decline(work.correlation, Fault(kind=Kind.INVALID, message=message, field="request_id"))

    def _decline(self, correlation: Correlation, fault: Fault) -> None:
        self._outbox.enqueue(
            Decline(id=self._runtime.mint(), at=self._runtime.now(), correlation=correlation, fault=fault)
        )

    # --- running ---

    def _begin(self, task: RunningTask, handler: Handler, arguments: dict[str, Any]) -> None:
        def begin() -> None:
            task.execution = self._loop.create_task(self._work(task, handler, arguments))

        self._slots.enter(task, begin)

    async def _begin_after(
        self,
        previous: RunningTask | None,
        task: RunningTask,
        handler: Handler,
        arguments: dict[str, Any],
        has_answer: bool,
    ) -> None:
        """Begin once an older run of the same task is over and the answers so far are known."""
        if previous is not None:
            self.drop(previous)
            self.tasks[task.id] = task
            if previous.execution is not None:
                await asyncio.wait({previous.execution})
        if has_answer:
            await self._journal.answer(self._answered(task.work))
        elif task.work.is_new_round and not self._journal.answered_by(task.id, task.correlation.request_id):
            self._journal.forget_answers(task.id)
        task.answers = self._journal.answers(task.id)
        self._begin(task, handler, arguments)

    async def _work(self, task: RunningTask, handler: Handler, arguments: dict[str, Any]) -> None:
        began = self._runtime.monotonic()
        caller = trace.parse(task.work.traceparent)
        trace.enter(
            trace.Span(caller.trace_id if caller else task.trace_id, trace.span_id(self._runtime.mint()), task.id)
        )
        try:
            try:
                ending: tasks.Result = ends.returned(await self._run(task, handler, arguments))
            except asyncio.CancelledError as error:
                us = asyncio.current_task()
                assert us is not None
                if task.overdue and not task.cancelled:
                    us.uncancel()
                    ending = ends.overdue(handler.timeout or 0.0)
                elif us.cancelling():
                    raise
                else:  # something that the handler waited for was cancelled, not the handler
                    ending = self._failed(task, handler, error)
            except (KeyboardInterrupt, GeneratorExit):  # the process ends, or the loop
                raise
            except BaseException as error:  # sys.exit() in a handler ends its task, not the agent
                ending = self._failed(task, handler, error)
            task.deadline = None
            if task.handed_to is not None:
                return log.info("task %s is %s's now", task.id, task.handed_to)
            failed = isinstance(ending, tasks.Failure)
            if (
                not failed and task.answer_pieces and ending.result is not UNSET
            ):  # JSON is for callers without text to read
                ending = msgspec.structs.replace(ending, output=ends.clean("".join(task.answer_pieces)) or None)
            seconds = self._runtime.monotonic() - began
            self.stats.ended(seconds, failed=failed, usage=task.usage)
            outcome = self._outcome(task.correlation, ending, seconds, task.usage)
            remembered = outcome
            if not failed and not ending.output and task.output_pieces:
                # The next process has no pieces to send again, so the journal keeps the whole answer for it. Where the
                # hub confirms nothing, the outcome itself has it: the hub asks again if it lost a piece.
                whole = msgspec.structs.replace(outcome.content, output="".join(task.output_pieces))
                remembered = msgspec.structs.replace(outcome, content=whole)
                outcome = outcome if self._outbox.protocol_capabilities.has_receipts else remembered
            await self._journal.record(remembered, task.print, task.requests)
            if not task.cancelled:
                self._outbox.acknowledge_by_message(task)
                self._outbox.enqueue(outcome)
        finally:
            self._discharge(task)
            self._slots.leave(task)

    def _failed(self, task: RunningTask, handler: Handler, error: BaseException) -> tasks.Failure:
        ending = ends.raised(error)
        if handler.terms.get("pii"):  # the message, and the stack, may have personal data (a2acp-D13)
            log.warning("task %s (%s) failed: %s", task.id, task.type, type(error).__name__)
        else:
            road = (type(error), error, user_frames(error.__traceback__))
            traced = None if isinstance(error, Reject | Retry) else road  # a refusal needs no traceback
            log.warning("task %s (%s) failed: %s", task.id, task.type, ending.output, exc_info=traced)
        return ending

    async def _run(self, task: RunningTask, handler: Handler, arguments: dict[str, Any]) -> Any:
        """What the handler returns, in as many runs as its policy allows."""
        while True:
            if handler.timeout is not None:
                task.deadline = self._runtime.monotonic() + handler.timeout
            try:
                return await self._call(task, handler, arguments)
            except Exception as error:
                delay = handler.retry.next_delay(task.retries + 1, error)
                if delay is None or task.cancelled or task.handed_to is not None:
                    raise
                why = type(error).__name__ if handler.terms.get("pii") else ends.error_text(error)
                log.warning("task %s (%s) failed: %s; it runs again in %.1f s", task.id, task.type, why, delay)
            task.begin_again()
            task.is_between_runs = True
            try:
                async with self.reporter.away(task):
                    await self._runtime.sleep(delay)
            finally:
                task.is_between_runs = False

    async def _call(self, task: RunningTask, handler: Handler, arguments: dict[str, Any]) -> Any:
        """One run of the handler, inside the agent's middleware."""
        if not self._middleware:
            return await self._invoke(Task(self.reporter, self.peer_requests, task), task, handler, arguments)

        async def innermost(seen: Task) -> Any:
            return await self._invoke(seen, task, handler, arguments)

        call: CallNext = innermost
        for middleware in reversed(self._middleware):
            call = partial(_around, middleware, call)
        return await call(Task(self.reporter, self.peer_requests, task))

    async def _invoke(self, seen: Task, task: RunningTask, handler: Handler, arguments: dict[str, Any]) -> Any:
        if handler.is_async:
            return await (handler.function(seen, **arguments) if handler.takes_task else handler.function(**arguments))
        first = (SyncTask(seen, task, self._loop),) if handler.takes_task else ()
        return await self.in_thread(lambda: handler.function(*first, **arguments))

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """Run a plain function in a thread, in the current context."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._who.concurrency + MOST_ASKING, "dragoman-handler")
        context = contextvars.copy_context()
        return await self._loop.run_in_executor(self._threads, lambda: context.run(_carried, call))

    def _outcome(
        self, correlation: Correlation, content: tasks.Result, seconds: float, usage: dict[str, float] | None = None
    ) -> Outcome:
        if usage is not None:
            content = msgspec.structs.replace(content, usage=usage)
        id, at = self._runtime.mint(), self._runtime.now()
        return Outcome(id=id, at=at, correlation=correlation, content=content, seconds=round(seconds))

    def drop(self, task: RunningTask) -> None:
        """The work is no longer wanted: cancel its handler and drop its messages."""
        task.withdrawn = True
        task.give_up()
        for message in self._outbox.about(task_id=task.id):
            self.reporter.accepted(message.id)
        if task.execution is not None:
            task.execution.cancel()
        self._discharge(task)

    def stop_late(self, task: RunningTask) -> None:
        """Stop a handler that has used up its time."""
        task.overdue = True
        if task.execution is not None:
            task.execution.cancel()

    def _discharge(self, task: RunningTask) -> None:
        """The task no longer belongs to this agent."""
        for request_id in task.requests:
            if self._by_request.get(request_id) is task:
                del self._by_request[request_id]
        if self.tasks.get(task.id) is task:
            del self.tasks[task.id]

    def of_request(self, request_id: str) -> RunningTask | None:
        return self._by_request.get(request_id)

    async def close(self) -> None:
        """Stop everything. The hub assigns unfinished work again."""
        for task in self.tasks.values():
            task.give_up()
        runners = [task.execution for task in self.tasks.values() if task.execution is not None]
        for execution in (*runners, *self._background):
            execution.cancel()
        await asyncio.gather(*runners, *self._background, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # --- answers ---

    def reply(self, reply: Answer) -> None:
        """An answer came to a question for which a handler waits."""
        task = self.tasks.get(reply.task_id)
        if task is None or task.asking is None or task.asking.id != reply.id or task.answer is None:
            self._outbox.acknowledge(reply.receipt)
            return log.info("an answer came for task %s, which no longer waits for it", reply.task_id)
        now, question = self._runtime.now(), task.asking.ask.question
        answered = Answered(task_id=task.id, request_id=reply.id, at=now, answer=reply.answer, question=question)
        if reply.receipt is not None:
            return self._start(self._answer(task, task.answer, answered, reply.receipt))
        return self._tell(task, task.answer, answered)

    async def _answer(
        self, task: RunningTask, waiting: asyncio.Future[Answered], answered: Answered, receipt: str
    ) -> None:
        """An answer that the hub forgets once the agent acknowledged it."""
        await self._journal.answer(answered)
        self._outbox.acknowledge(receipt)
        self._tell(task, waiting, answered)

    def _tell(self, task: RunningTask, waiting: asyncio.Future[Answered], answered: Answered) -> None:
        if not waiting.done():
            waiting.set_result(answered)
            self.reporter.sign_of_life_soon(task)

    async def _go_on(self, task: RunningTask, work: Assignment, print: str) -> None:
        """An answer came for a running task, as a new request. The result will answer that request."""
        task.correlation = work.correlation
        task.requests.append(work.correlation.request_id)
        task.print = print
        self._by_request[work.correlation.request_id] = task
        if task.asking is None or task.answer is None or task.answer.done():
            log.warning("task %s got an answer although it asks nothing; it is ignored", task.id)
            return
        waiting, answered = task.answer, self._answered(work)
        if answered.question is None:
            answered = msgspec.structs.replace(answered, question=task.asking.ask.question)
        await self._journal.answer(answered)
        self._tell(task, waiting, answered)

    def _answered(self, work: Assignment) -> Answered:
        return Answered(
            task_id=work.correlation.task_id,
            request_id=work.correlation.request_id,
            at=self._runtime.now(),
            answer=work.request.answer,
            question=work.request.question,
        )

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        started = self._loop.create_task(coroutine)
        self._background.add(started)
        started.add_done_callback(self._background.discard)


async def _around(middleware: Middleware, call_next: CallNext, task: Task) -> Any:
    return await middleware(task, call_next)


def _carried(call: Callable[[], Any]) -> Any:
    """What it returns or raises, as a future can carry it."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


def _print(work: Assignment) -> str:
    """Identifies the content of a request."""
    files = [(file.name, file.mime_type, hashlib.blake2b(file.data).digest()) for file in work.files]
    content = [work.type, work.input, files] if files else [work.type, work.input]
    return hashlib.blake2b(_canonical(content), digest_size=16).hexdigest()


def _without_answer(work: Assignment, handler: Handler, *, is_asking: bool) -> tuple[dict[str, Any], bool]:
    """The input proper, and whether the request carries an answer.

    A handler may have a parameter called `answer`: then it is one only if a question is open or the request names it.
    The handoff of an agent that began the task is no input either.
    """
    given, request = work.input, work.request
    is_handed_over = request.handover is not None and "handover" not in handler.names
    if is_handed_over and tasks.handoff_in(given.get("handover")) == request.handover:
        given = {name: value for name, value in given.items() if name != "handover"}
    is_parameter = "answer" in handler.names
    if request.answer is UNSET or (is_parameter and not is_asking and request.question is None):
        return given, False
    return {name: value for name, value in given.items() if name != "answer" or is_parameter}, True
