"""Coven over gRPC: an agent's stream, spoken by hand; its work comes over the management API."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator
from typing import Any

from dragoman.app.datadir import Whereabouts
from dragoman.cli.hubclient import NO_GRPC
from dragoman.cli.scenarios.fake_agents import PATIENCE, FakeAgent, FakeAgents, until
from dragoman.cli.scenarios.steps import Checks, NotTried, Unmet, expect

STREAM = "/coven.CovenControl/AgentStream"
checks: Checks[Scenario] = Checks()


class Stream:
    """One stream of one agent. Messages are coven's own, by their generated classes."""

    def __init__(self, channel: Any, token: str | None) -> None:
        from dragoman.protocols.coven import coven_pb2 as pb

        self.pb = pb
        self._out: queue.Queue[Any] = queue.Queue()
        metadata = [("authorization", f"Bearer {token}")] if token else []
        call = channel.stream_stream(
            STREAM,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.ServerMessage.FromString,
        )
        self._call = call(iter(self._out.get, None), metadata=metadata, timeout=3 * PATIENCE)

    def send(self, **payload: Any) -> None:
        self._out.put(self.pb.AgentMessage(**payload))

    def receive(self) -> Any:
        """The next message of the hub; raises `grpc.RpcError` as the stream ended."""
        found = next(self._call, None)
        if found is None:
            raise Unmet("the hub ended the stream")
        return found

    def register(self, agent_id: str) -> Any:
        self.send(register={"agent_id": agent_id, "name": "conformance", "capabilities": ["conformance"]})
        received = self.receive()
        expect(received.WhichOneof("payload") == "welcome", f"the first message is {received.WhichOneof('payload')}")
        return received.welcome

    def refusal(self) -> str:
        """The status with which the hub ends it."""
        import grpc

        try:
            received = self.receive()
        except grpc.RpcError as error:
            return str(error.code().name)
        raise Unmet(f"it was answered with {received.WhichOneof('payload')}")

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()


def _channel(here: Whereabouts) -> Any:
    import grpc

    from dragoman.security import trust

    if not here.grpc_tls:
        return grpc.insecure_channel(here.grpc)
    mine = trust.shown()
    key, chain = (mine.key.read_bytes(), mine.certificate.read_bytes()) if mine else (None, None)
    return grpc.secure_channel(here.grpc, grpc.ssl_channel_credentials(here.certificate.encode(), key, chain))


class Scenario:
    def __init__(self, fakes: FakeAgents, here: Whereabouts | None) -> None:
        if here is None or not here.grpc:
            raise NotTried(NO_GRPC)
        self.agent: FakeAgent = fakes.admit("coven", "agent")
        self.hub = fakes.hub
        self._channel = _channel(here)
        self._open: list[Stream] = []
        self.stream = self.open(self.agent.token)

    def open(self, token: str | None) -> Stream:
        stream = Stream(self._channel, token)
        self._open.append(stream)
        return stream

    def submit(self) -> str:
        request = {"type": "conformance", "agent": self.agent.id, "input": {"content": "hello"}}
        return str(self.hub.post("tasks", body=request)["id"])

    def work(self) -> Any:
        received = self.stream.receive()
        expect(received.WhichOneof("payload") == "send_message", f"{received.WhichOneof('payload')} came instead")
        return received.send_message

    def close(self) -> None:
        for stream in self._open:
            stream.close()
        self._channel.close()


def streams(scenario: Scenario, token: str | None = None) -> Iterator[Stream]:
    stream = scenario.open(token)
    try:
        yield stream
    finally:
        stream.close()


@checks("CO-WEL-1", "A good registration is answered with the gateway's id and the agent's own.")
def welcome(scenario: Scenario) -> None:
    answer = scenario.stream.register(scenario.agent.id)
    expect(answer.agent_id == scenario.agent.id, f"the agent is called {answer.agent_id}")
    expect(answer.server_id, "the gateway has no id")


@checks("CO-REG-3", "A missing agent_id is INVALID_ARGUMENT.")
def nameless(scenario: Scenario) -> None:
    for stream in streams(scenario):
        stream.send(register={"agent_id": "", "name": "nobody"})
        code = stream.refusal()
        expect(code == "INVALID_ARGUMENT", f"it ended with {code}")


@checks("CO-REG-4", "A second agent of the same id is ALREADY_EXISTS.")
def second(scenario: Scenario) -> None:
    for stream in streams(scenario, scenario.agent.token):
        stream.send(register={"agent_id": scenario.agent.id, "name": "again"})
        code = stream.refusal()
        expect(code == "ALREADY_EXISTS", f"it ended with {code}")


@checks("coven/all-D1", "An agent that has a token must bring it.")
def spoofed(scenario: Scenario) -> None:
    for stream in streams(scenario, secrets.token_hex(16)):
        stream.send(register={"agent_id": scenario.agent.id, "name": "a stranger"})
        code = stream.refusal()
        expect(code in ("UNAUTHENTICATED", "PERMISSION_DENIED"), f"it ended with {code}")


@checks("CO-IMP-2", "After Welcome the agent gets requests, with id, sender and content.")
def requests(scenario: Scenario) -> None:
    task = scenario.submit()
    work = scenario.work()
    expect(work.request_id and "hello" in work.content, f"the request says {work.content!r}")
    scenario.stream.send(response={"request_id": work.request_id, "text": "half "})
    scenario.stream.send(heartbeat={"timestamp_ms": 1})
    scenario.stream.send(response={"request_id": work.request_id, "done": {"full_response": "half whole"}})
    until(lambda: scenario.hub.get("tasks", task)["status"] == "completed", "the task did not end")
    answer = scenario.hub.get("tasks", task)
    expect("half whole" in str(answer.get("output")) + str(answer.get("result")), "its answer is another")


@checks("CO-RSP-5", "Every request ends with done or error: an error fails the task with its text.")
def errors(scenario: Scenario) -> None:
    task = scenario.submit()
    work = scenario.work()
    scenario.stream.send(response={"request_id": work.request_id, "error": "no such host"})
    until(lambda: scenario.hub.get("tasks", task)["status"] == "failed", "the task did not fail")
    expect("no such host" in str(scenario.hub.get("tasks", task)["error"]), "its reason is another")


@checks("CO-CCY-1", "One request at a time per stream.")
def one_at_a_time(scenario: Scenario) -> None:
    tasks = [scenario.submit() for _ in range(2)]
    first = scenario.work()
    scenario.stream.send(response={"request_id": first.request_id, "done": {"full_response": "1"}})
    second = scenario.work()
    expect(second.request_id != first.request_id, "the same request came twice")
    scenario.stream.send(response={"request_id": second.request_id, "done": {"full_response": "2"}})
    until(lambda: all(scenario.hub.get("tasks", one)["status"] == "completed" for one in tasks), "they did not end")
