"""An agent or a client as a program: signals, the log, and what is printed for an uncaught error.

A `DragomanError` is printed as one sentence, with the line of the user's program that it is about: the hub does not
answer, the token is wrong, a handler cannot be called. Every other error keeps its traceback, without the frames of
dragoman that it passed through. An error that began in dragoman's own code is shown whole, because it is a defect.

Python calls `sys.excepthook` only for what the program did not catch, so nothing changes for one that catches
`DragomanError`. A hook that the program has set stays. DRAGOMAN_TRACEBACK=1 shows everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from dragoman.sdk.errors import DragomanError, Misconfigured

log = logging.getLogger("dragoman.sdk")

OURS = str(Path(__file__).parents[1]) + os.sep
WHOLE = "DRAGOMAN_TRACEBACK"
_PASSED_THROUGH = (OURS, f"{os.sep}asyncio{os.sep}", f"{os.sep}concurrent{os.sep}futures{os.sep}")


def install_excepthook() -> None:
    """Install the hook. Called when the first agent or client is made."""
    if sys.excepthook is sys.__excepthook__ and not os.environ.get(WHOLE):
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, DragomanError):
        print(f"error: {error}{_place(trace)}", file=sys.stderr)  # noqa: T201 - it stands for a traceback
    else:
        traceback.print_exception(kind, error, user_frames(trace))


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of dragoman and of the event loop; all of it, if it ends in dragoman's code."""
    steps = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    if not steps or _is_ours(steps[-1]):
        return steps[0] if steps else None
    kept: TracebackType | None = None
    for step in reversed(steps):
        if not _file(step).startswith("<frozen") and not any(part in _file(step) for part in _PASSED_THROUGH):
            kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return kept


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the user's own program."""
    for frame in reversed(traceback.extract_tb(trace)):
        if not frame.filename.startswith("<") and not any(part in frame.filename for part in _PASSED_THROUGH):
            return f"\n  at {os.path.relpath(frame.filename)}, line {frame.lineno}: {frame.line}"
    return ""


def _is_ours(step: TracebackType) -> bool:
    return _file(step).startswith(OURS)


def _file(step: TracebackType) -> str:
    return step.tb_frame.f_code.co_filename


class _Agent(Protocol):
    id: str

    async def serve(self, url: str | None) -> None: ...

    def stop(self) -> None: ...


def run(agent: _Agent, url: str | None) -> None:
    _refuse_inside_a_loop()
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(_until_signal(agent, url))


async def _until_signal(agent: _Agent, url: str | None) -> None:
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
        except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread: the caller calls `stop`
            break
    try:
        await serving
    except asyncio.CancelledError:
        if signals < 2:
            raise


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
