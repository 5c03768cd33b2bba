"""The peer: the official a2a-sdk server with its in-memory store, answering JSON-RPC `SendMessage`.

Three executors, from the least an A2A agent can do to what the SDK's own hello-world does:

    message   one Message and no task at all: nothing could be asked about afterwards
    task      a Task that reaches completed with one artifact: submitted, artifact, completed
    hello     the events of the published hello-world sample (a `working` status between), tracing on as it ships

`task` is the peer's figure: the least that offers what ours offers, a task that one can look up. It is faster
than the sample, mostly because the SDK's tracing is off here: on, as it ships, a call took 2.6–2.8 ms of CPU
instead of 2.0 (three alternating runs), though nobody collects the spans. So the comparison leans to the peer's
side. Served exactly as ours is (bench/serving.py), with the SDK's default handler.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from bench import procs
from bench.figures import Figure, Settings
from bench.load import measure as load
from bench.serving import serve

VARIANTS = ("task", "message", "hello")
TEXT = "Hello, World! The task is done."


def build(variant: str) -> object:
    """The ASGI application, put together as the SDK documents it."""
    from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.events import EventQueue
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
    from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
    from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
    from starlette.applications import Starlette

    class Executor(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            if variant == "message":
                await event_queue.enqueue_event(new_text_message(TEXT, context_id=context.context_id))
                return
            task = context.current_task or new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
            updater = TaskUpdater(event_queue, task.id, task.context_id)
            if variant == "hello":
                await updater.start_work(new_text_message("Processing request…"))
            await updater.add_artifact([new_text_part(TEXT)], name="result")
            await updater.complete()

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise NotImplementedError

    card = AgentCard(
        name="Hello World Agent",
        description="Just a hello world agent",
        version="1.0.0",
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=False),
        supported_interfaces=[
            AgentInterface(protocol_binding="JSONRPC", url="http://127.0.0.1/", protocol_version="1.0")
        ],
        skills=[AgentSkill(id="hello", name="Hello", description="says hello", tags=["hello"], examples=["hi"])],
    )
    handler = DefaultRequestHandler(agent_executor=Executor(), task_store=InMemoryTaskStore(), agent_card=card)
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


def body(size: int) -> str:
    """A SendMessage of about `size` bytes, with a fresh message id each time."""
    start = (
        '{"jsonrpc":"2.0","id":"%(id)s","method":"SendMessage","params":{"message":{"role":"ROLE_USER",'
        '"messageId":"0197a2f0-0000-7000-8000-%(id)s","parts":[{"text":"'
    )
    end = '"}]}}}'
    return start + "x" * max(1, size - len(start) - len(end) - 12) + end


def measure(settings: Settings) -> Iterable[Figure]:
    for variant in VARIANTS:
        levels = settings.levels if variant == "task" else [n for n in settings.levels if n == 32]
        for in_flight in levels:
            # A fresh server each time: its store keeps every task, and must not slow the later levels.
            tracing = "true" if variant == "hello" else "false"
            with procs.python(
                "bench.peer_a2a", variant, env={"OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": tracing}
            ) as server:
                yield load(
                    "bench.load:HttpPost",
                    {
                        "url": server.ready()["http"],
                        "path": "/",
                        "body": body(settings.body),
                        "headers": {"a2a-version": "1.0"},
                        "contains": '"ROLE_AGENT"' if variant == "message" else '"TASK_STATE_COMPLETED"',
                    },
                    suite="a2a-sdk" if variant == "task" else f"a2a-sdk-{variant}",
                    in_flight=in_flight,
                    settings=settings,
                    server=server,
                )


if __name__ == "__main__":
    logging.disable(logging.INFO)
    serve(build(sys.argv[1]))
