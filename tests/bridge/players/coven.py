"""Coven on the wire: gRPC with messages compiled from a file of our own, and the extensions that it lists."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from tests.bridge.players.neutral import (
    CANCELLED,
    PATIENCE,
    Caller,
    File,
    Handle,
    Job,
    Order,
    Party,
    Piece,
    Player,
    Unsayable,
    Worker,
    WorkFailure,
    said,
    soon,
    trace_in,
    traceparent_of,
)

SOURCE = Path(__file__).with_name("coven.proto")
STREAM, SEND, CANCEL = "/coven.CovenControl/AgentStream", "/coven.CovenClient/Send", "/coven.CovenClient/Cancel"
TASK_ID = "dragoman-task-id"
BINARY = "application/octet-stream"
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
"""A pool of its own: channels to one address would otherwise share a connection."""


@cache
def words() -> Any:
    """The messages, in a pool of their own, so that they cannot meet the hub's."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "peer.pb")
        given = ["protoc", f"--proto_path={SOURCE.parent}", f"--descriptor_set_out={target}", str(SOURCE)]
        assert protoc.main(given) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found = pool.FindFileByName(SOURCE.name)
    classes = {name: message_factory.GetMessageClass(form) for name, form in found.message_types_by_name.items()}
    return SimpleNamespace(**classes)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def behind(content: str, name: str) -> Any:
    """What stands as JSON behind the words of a message, each part by itself."""
    parts = [json.loads(part) for part in content.split("\n\n") if part.startswith(f'{{"{name}":')]
    return parts[0][name] if parts else None


class CovenParty(Party):
    protocol = "coven"
    channel: Any

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    async def connect(self) -> None:
        self.channel = grpc.aio.insecure_channel(self.stage.grpc, options=OPTIONS)

    async def leave(self) -> None:
        await self.channel.close()


class CovenCaller(CovenParty, Caller):
    async def submit(self, order: Order) -> Handle:
        order.cannot("description", "deadline", "dependencies", "parent", "budget", "limit", "context")
        message = words().SendMessage(
            request_id=order.request_id,
            thread_id=order.thread or "",
            sender=self.id,
            work_type=order.type,
            input_json=as_json(order.input),
            to_agent=order.to,
            priority=order.priority or "",
            traceparent=traceparent_of(order.trace) if order.trace else "",
            attachments=[{"filename": file.name, "mime_type": BINARY, "data": file.data} for file in order.attachments],
        )
        call = self.channel.unary_stream(SEND)(message.SerializeToString(), metadata=self.metadata)
        told = dict(await soon(call.initial_metadata()))
        assert TASK_ID in told, await soon(call.details())
        return Handle(task_id=told[TASK_ID], native=(order.request_id, call))

    async def cancel(self, handle: Handle, reason: str) -> None:
        request = words().CancelRequest(task_id=handle.task_id, reason=reason).SerializeToString()
        reply = words().CancelReply.FromString(
            await soon(self.channel.unary_unary(CANCEL)(request, metadata=self.metadata))
        )
        assert (reply.task_id, reply.status) == (handle.task_id, CANCELLED)

    async def piece(self, handle: Handle) -> Piece:
        request_id, call = handle.native
        data = await call.read()
        assert data is not grpc.aio.EOF, f"a silent end: {await call.details()}"
        response = words().MessageResponse.FromString(data)
        assert (response.request_id, response.task_id) == (request_id, handle.task_id)
        return self._event(response) | self._progress(response)

    def _event(self, response: Any) -> Piece:
        kind = response.WhichOneof("event")
        match kind:
            case "text":
                return {"output": response.text}
            case "thinking" if not response.HasField("progress"):
                question = response.thinking.startswith("Waiting for a person")
                return {"question" if question else "thinking": response.thinking}
            case "tool_use":
                used = response.tool_use
                return {"tool_use": {"id": used.id, "name": used.name, "input": json.loads(used.input_json or "null")}}
            case "tool_result":
                came = response.tool_result
                return {"tool_result": {"id": came.id, "output": came.output, "is_error": came.is_error}}
            case "file":
                return {"file": File(response.file.filename, response.file.data)}
            case "done":
                result = response.done.result_json
                text = response.done.full_response
                return said(final="completed", text=text, result=json.loads(result) if result else None)
            case "error":
                facts = json.loads(response.fault.facts_json or "{}")
                final = CANCELLED if response.fault.kind == CANCELLED else "failed"
                return said(final=final, error=response.error, exit_code=facts.get("exit_code"))
        return {}

    def _progress(self, response: Any) -> Piece:
        if not response.HasField("progress"):
            return {}
        progress = response.progress
        told = said(message=progress.message)
        if progress.HasField("percent"):
            told["percent"] = progress.percent
        if progress.step or progress.number:
            total = {"total": progress.total} if progress.total else {}
            told["step"] = {"number": progress.number, "name": progress.step, **total}
        return told


class CovenWorker(CovenParty, Worker):
    fails_with_usage = False

    extensions: tuple[str, ...] = ("cancel",)

    async def connect(self) -> None:
        await super().connect()
        self._writing = asyncio.Lock()
        self.call = self.channel.stream_stream(STREAM)(metadata=self.metadata)
        await self._write(register={"agent_id": self.id, "extensions": list(self.extensions)})
        welcome = words().ServerMessage.FromString(await soon(self.call.read()))
        assert welcome.welcome.agent_id == self.id
        self._reading = asyncio.create_task(self._read())

    def die(self) -> None:
        self._reading.cancel()
        self.call.cancel()

    async def come_back(self) -> None:
        """Again and again, while the hub still sees the old stream."""
        async with asyncio.timeout(PATIENCE):
            while True:
                await self.channel.close()
                try:
                    await self.connect()
                    return
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    # gRPC's client says INTERNAL, or that it is over, if the refusal comes before the register has left
                    if await self.call.code() not in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INTERNAL):
                        raise

    async def leave(self) -> None:
        if not self.call.done():
            await soon(self.call.done_writing())
        self._reading.cancel()  # which cancels the call: afterwards there is nothing to write to
        await super().leave()

    async def _write(self, **payload: Any) -> None:
        async with self._writing:  # a call takes one message at a time, and the reader answers cancels by itself
            await soon(self.call.write(words().AgentMessage(**payload).SerializeToString()))

    async def _read(self) -> None:
        while (data := await self.call.read()) is not grpc.aio.EOF:
            message = words().ServerMessage.FromString(data)
            match message.WhichOneof("payload"):
                case "send_message":
                    self.jobs.put_nowait(self._job(message.send_message))
                case "cancel":
                    self._cancelled[message.cancel.request_id].set()
                    await self._write(response={"request_id": message.cancel.request_id, "error": "stopped"})

    def _job(self, message: Any) -> Job:
        return Job(
            id=message.task_id,
            type=message.work_type,
            input=json.loads(message.input_json) if message.input_json else {"content": message.content},
            native=message,
            description=message.content,
            thread=message.thread_id,
            attachments=tuple(File(file.filename, file.data) for file in message.attachments),
            answer=json.loads(message.answer_json) if message.answer_json else None,
            attempt=message.attempt,
            trace=trace_in(message.traceparent),
            context=behind(message.content, "context"),
            handover=behind(message.content, "handover"),
        )

    async def _respond(self, job: Job, **event: Any) -> None:
        await self._write(response={"request_id": job.native.request_id, **event})

    async def say(self, job: Job, **features: Any) -> None:
        """One event for each thing; figures and words ride beside."""
        figures = ("percent", "message")
        progress: dict[str, Any] = {name: features.pop(name) for name in figures if name in features}
        step = features.pop("step", None)
        if step is not None:
            progress |= {"step": step["name"], "number": step["number"], "total": step.get("total", 0)}
        if progress:
            await self._respond(job, thinking=progress.get("message", ""), progress=progress)
        for name, value in features.items():
            match name:
                case "thinking":
                    await self._respond(job, thinking=value)
                case "output":
                    await self._respond(job, text=value)
                case "tool_use":
                    given = {"id": value["id"], "name": value["name"], "input_json": as_json(value["input"])}
                    await self._respond(job, tool_use=given)
                case "tool_result":
                    await self._respond(job, tool_result=value)
                case "file":
                    file = {"filename": value.name, "mime_type": BINARY, "data": value.data}
                    await self._respond(job, file=file)

    async def ask(self, job: Job, question: str, options: tuple[Any, ...] = ()) -> None:
        asked = {"question": question, "options_json": as_json(options)}
        await self._respond(job, done={"question": asked})

    async def answered(self, job: Job) -> Job:
        again = await self.take()
        assert (again.id, again.thread) == (job.id, job.thread)
        return again

    async def finish(
        self, job: Job, *, result: Any = None, text: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        if usage is not None:
            raise Unsayable("usage")
        await self._respond(
            job, done={"full_response": text or "", "result_json": "" if result is None else as_json(result)}
        )

    async def end_in(self, job: Job, failure: WorkFailure) -> None:
        facts = "" if failure.exit_code is None else as_json({"exit_code": failure.exit_code})
        kind = "resources" if failure.retryable else "work_failed"
        fault = {"kind": kind, "message": failure.message, "retryable": failure.retryable, "facts_json": facts}
        await self._respond(job, error=failure.message, **({"fault": fault} if failure.retryable or facts else {}))

    async def hears(self) -> str:
        raise Unsayable("pause")

    async def until_cancelled(self, job: Job) -> None:
        if "cancel" not in self.extensions:
            raise Unsayable("cancel")
        await soon(self._cancelled[job.native.request_id].wait())


Coven = Player(CovenCaller, CovenWorker)
