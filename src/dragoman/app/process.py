"""The hub as a process: logs, signals, the cycle collector, and its exit code. `wiring` makes the hub itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable

import structlog

from dragoman.app.datadir import Whereabouts
from dragoman.app.logs import set_up_logs
from dragoman.app.service_manager import ServiceManager
from dragoman.app.settings import Settings
from dragoman.app.wiring import Running, hub
from dragoman.core.ids import AgentId
from dragoman.security.private import leave_no_dumps

log = structlog.get_logger("dragoman")

Greet = Callable[[Whereabouts], None]
"""Prints for the person who started the hub where it serves."""


async def serve_until_stopped(settings: Settings, greet: Greet, *, demo: bool) -> int:
    """The first signal stops it in order, which may take as long as agents at work may; the second ends it at once."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stopped.is_set():  # safe: accepted work is on the disk, and children die with the hub
            log.warning("ended at once; what was accepted is kept and goes on at the next start")
            os._exit(128 + number)
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGUSR1, log_what_runs)
    manager = ServiceManager(os.environ)
    if settings.store.url is not None:
        from dragoman.app.cluster.node import serve_node

        def serves(here: Whereabouts) -> None:
            greet(here)
            manager.serving(f"serving at {here.http}")

        await serve_node(settings, serves, stopped)
        log.info("stopped; everything is kept, and other nodes go on", node=settings.cluster.node)
        return 0
    async with hub(settings) as running:
        greet(running.with_login())
        async with contextlib.AsyncExitStack() as beside:
            if demo:
                from dragoman.app.demo import demo_agents

                await beside.enter_async_context(demo_agents(running))
            manager.serving(f"serving at {running.serving.url}")
            await stopped.wait()
            manager.stopping()
            patience = f"{settings.server.drain_seconds:g} s to finish and leave; a second Ctrl-C ends it at once"
            waited_for = agents_waited_for(running)
            log.info("stopping", **{"waiting_for": waited_for, "they_have": patience} if waited_for else {})
    log.info("stopped; everything is kept and goes on at the next start", data=settings.data)
    return 0


def agents_waited_for(running: Running) -> list[AgentId]:
    """The agents that a stop waits for: streams until they leave, children at work. Every other agent's next message is
    received at the next start."""
    intake, children = running.intake, running.children
    here = [one for one in intake.agents() if intake.reachable(one.id)]
    return [
        one.id
        for one in here
        if one.protocol == "coven" or (children.status(one.id) is not None and intake.load_of(one.id))
    ]


def log_what_runs() -> None:
    """`kill -USR1` writes into the log where every coroutine stands: for a person who looks at a hub that hangs."""
    for task in asyncio.all_tasks():
        at, awaited = [], task.get_coro()
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            at.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            awaited = awaited.cr_await  # type: ignore[union-attr]
        log.info("under way", task=task.get_name(), at=" > ".join(at))


def run(settings: Settings, greet: Greet, *, demo: bool = False) -> int:
    """Serve until a signal; the exit code of the process."""
    import uvloop

    set_up_logs(level=settings.log.level, form="json" if settings.log.format == "json" else "console")
    leave_no_dumps()
    tune_the_collector()
    return uvloop.run(serve_until_stopped(settings, greet, demo=demo))


def tune_the_collector() -> None:
    """Rows are frozen values without cycles, so reference counts free them; what is imported stays for good. The
    cycle collector would only walk all of it again and again: a tenth of a busy hub's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
