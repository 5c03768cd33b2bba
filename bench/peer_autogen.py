"""The peer of coven: AutoGen's gRPC runtime (autogen-ext), a request from one agent to another through its host.

    host     GrpcWorkerAgentRuntimeHost in a process of its own; what the server columns count
    caller   one GrpcWorkerAgentRuntime in the load process; a second one would clash with the first, because the
             host tells answers apart by numbers that every runtime counts for itself
    agents   one GrpcWorkerAgentRuntime and one agent type each, all together in one process

Nothing is durable. Its fastest honest form, found by trial: uvloop on all sides, a dataclass as message, agents
without the router of handlers, tracing off by its own switch; the agents beside the caller at 1 in flight, in a
process of their own above that: each faster than the other way there. Its logging is off, yet the library still
composes its log lines: that cost is its own.

`autogen` speaks through the library's worker runtimes, as its users do. `autogen-host` is the strictest reading:
the same host, but caller and agents are bare streams of bytes, as light as those that drive the hub.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench import peers, procs
from bench.figures import Figure, Settings
from bench.load import Meter
from bench.load import measure as load
from bench.raw_grpc import STREAMS

CHANNEL = "/agents.AgentRpc/OpenChannel"
QUIET = {"AUTOGEN_DISABLE_RUNTIME_TRACING": "true"}


@dataclass
class Words:
    text: str


ANSWER = Words("Deployment completed successfully.\nKuma instance running.\nMonitored services: 5")


class AutogenCalls:
    """`send_message` of the worker runtime; the answer is the agent's."""

    def __init__(self, address: str, size: int, agents: int, apart: bool = False) -> None:
        self._address = address
        self._words = Words("x" * size)
        self._count = agents
        self._apart = apart
        self._turn = 0

    async def open(self, meter: Meter, in_flight: int) -> None:
        from autogen_core import AgentId, try_get_known_serializers_for_type

        logging.disable(logging.CRITICAL)
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._agents = [] if self._apart else [await work(self._address, n) for n in range(self._count)]
        self._caller = await runtime(self._address)
        self._caller.add_message_serializer(try_get_known_serializers_for_type(Words))
        self._targets = [AgentId(f"infra{n}", "default") for n in range(self._count)]
        self._sender = AgentId("orchestrator", "default")
        self._calls: set[asyncio.Task[None]] = set()

    def begin(self, slot: int) -> None:
        self._turn += 1
        task = self._loop.create_task(self._call(slot, self._targets[self._turn % self._count]))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, slot: int, target: Any) -> None:
        answer = await self._caller.send_message(self._words, target, sender=self._sender)
        if answer == ANSWER:
            self._meter.finish(slot)
        else:
            self._meter.fail(slot, f"{answer!r}")

    def close(self) -> None:
        for call in self._calls:
            call.cancel()


class AutogenHost:
    """The same requests and answers as bytes on bare streams: what the host alone can do."""

    def __init__(self, address: str, size: int, agents: int) -> None:
        self._address = address
        self._text = "x" * size
        self._count = agents
        self._turn = 0

    async def open(self, meter: Meter, in_flight: int) -> None:
        import grpc.aio
        from autogen_ext.runtimes.grpc.protos import agent_worker_pb2 as types
        from autogen_ext.runtimes.grpc.protos.agent_worker_pb2_grpc import AgentRpcStub

        from bench.streams import BidiStream

        self._types = types
        told = types.Payload(data_type="Words", data_content_type="application/json", data=ANSWER.text.encode())
        link = grpc.aio.insecure_channel(self._address)
        stub: Any = AgentRpcStub(link)

        def agent(n: int) -> None:
            def hear(message: bytes) -> None:
                request = types.Message.FromString(message).request
                response = types.RpcResponse(request_id=request.request_id, payload=told)
                stream.send(types.Message(response=response).SerializeToString())

            stream = BidiStream(link, CHANNEL, hear, meter.lose, (("client-id", f"agent{n}"),))
            self._streams.append(stream)

        def heard(message: bytes) -> None:
            meter.finish(int(types.Message.FromString(message).response.request_id.split("-")[0]))

        self._streams: list[BidiStream] = []
        for n in range(self._count):
            agent(n)
            register = types.RegisterAgentTypeRequest(type=f"infra{n}")
            await stub.RegisterAgent(register, metadata=(("client-id", f"agent{n}"),))
        self._caller = BidiStream(link, CHANNEL, heard, meter.lose, (("client-id", "caller"),))
        self._streams.append(self._caller)
        # The host counts a client in when it has seen its stream; until then it drops what is meant for it.
        await asyncio.sleep(0.5)

    def begin(self, slot: int) -> None:
        types = self._types
        self._turn += 1
        request = types.RpcRequest(
            request_id=f"{slot}-{self._turn}",
            source=types.AgentId(type="orchestrator", key="default"),
            target=types.AgentId(type=f"infra{self._turn % self._count}", key="default"),
            payload=types.Payload(data_type="Words", data_content_type="application/json", data=self._text.encode()),
        )
        self._caller.send(types.Message(request=request).SerializeToString())

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


async def runtime(address: str) -> Any:
    from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime
    from opentelemetry.trace import NoOpTracerProvider

    made = GrpcWorkerAgentRuntime(host_address=address, tracer_provider=NoOpTracerProvider())
    await made.start()
    return made


async def work(address: str, number: int) -> Any:
    """One agent with a runtime of its own."""
    from autogen_core import BaseAgent, try_get_known_serializers_for_type

    class Infra(BaseAgent):
        async def on_message_impl(self, message: Any, ctx: Any) -> Any:
            return ANSWER

    made = await runtime(address)
    made.add_message_serializer(try_get_known_serializers_for_type(Words))
    await Infra.register(made, f"infra{number}", lambda: Infra("infra"))
    return made


def measure(settings: Settings) -> Iterable[Figure]:
    for agents in STREAMS:
        for in_flight in settings.levels:
            yield point(settings, agents, in_flight)
    for agents in STREAMS:
        for in_flight in settings.levels:
            yield host_alone(settings, agents, in_flight)


def point(settings: Settings, count: int, in_flight: int) -> Figure:
    python, apart = peers.interpreter(), in_flight > 1
    with ExitStack() as stack:
        host = stack.enter_context(procs.python("bench.peer_autogen", "host", env=QUIET, interpreter=python))
        address = host.ready()["grpc"]
        if apart:
            command = ("bench.peer_autogen", "agents", address, str(count))
            stack.enter_context(procs.python(*command, env=QUIET, interpreter=python)).ready()
        return load(
            "bench.peer_autogen:AutogenCalls",
            {"address": address, "size": settings.body, "agents": count, "apart": apart},
            suite=f"autogen-{count}",
            in_flight=in_flight,
            settings=settings,
            server=host,
            interpreter=python,
        )


def host_alone(settings: Settings, count: int, in_flight: int) -> Figure:
    python = peers.interpreter()
    with procs.python("bench.peer_autogen", "host", env=QUIET, interpreter=python) as host:
        return load(
            "bench.peer_autogen:AutogenHost",
            {"address": host.ready()["grpc"], "size": settings.body, "agents": count},
            suite=f"autogen-host-{count}",
            in_flight=in_flight,
            settings=settings,
            server=host,
            interpreter=python,
        )


async def host() -> None:
    import socket

    from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntimeHost

    # The host takes an address and does not tell the port it got, so a free one is looked for first.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    serving = GrpcWorkerAgentRuntimeHost(address=address)
    serving.start()
    print(f'{{"grpc": "{address}"}}', flush=True)
    await asyncio.Event().wait()


async def agents(address: str, count: int) -> None:
    made = [await work(address, n) for n in range(count)]
    print(f'{{"agents": {len(made)}}}', flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    logging.disable(logging.CRITICAL)
    uvloop.run(host() if sys.argv[1] == "host" else agents(sys.argv[2], int(sys.argv[3])))
