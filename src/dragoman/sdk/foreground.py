"""An agent as a program: it works until SIGINT or SIGTERM, and says in its log what it does."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from dragoman.sdk.errors import DragomanError, Misconfigured

if TYPE_CHECKING:
    from dragoman.sdk.agent import Agent

log = logging.getLogger("dragoman.sdk")


def run(agent: Agent, url: str | None) -> None:
    _refuse_inside_a_loop()
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(_until_signal(agent, url))


async def _until_signal(agent: Agent, url: str | None) -> None:
    loop = asyncio.get_running_loop()
    serving = loop.create_task(agent.serve(url))
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            log.info("%s stops: no more work is taken, running work may end", agent.id)
            agent.stop()
        else:
            serving.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop)
        except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread: the caller stops us
            break
    try:
        await serving
    except asyncio.CancelledError:
        if signals < 2:
            raise


def final_error(error: DragomanError) -> DragomanError:
    """The error that ends the program, to be raised: if nobody catches it, its sentence is all that is printed. A hook
    that the program installed for itself stays."""
    if sys.excepthook is sys.__excepthook__:

        def say(kind: type[BaseException], raised: BaseException, road: TracebackType | None) -> None:
            if raised is error:
                sys.stderr.write(f"{error}\n")
            else:
                sys.__excepthook__(kind, raised, road)

        sys.excepthook = say
    return error.with_traceback(None)


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Misconfigured(
        "an event loop runs here already (a notebook, a coroutine): write `await agent.serve(…)`, not agent.run(…)"
    )


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
