"""A coven agent in a process of its own, that does what it is told and can be killed with -9 at any moment.

It knows the document's protobuf text and gRPC, nothing of ours. Lines of JSON go in (what to say) and come out (what
was heard, how the stream ended). It has no memory: what an agent remembers over its own death, the test remembers.
"""

from __future__ import annotations

import ctypes
import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PATIENCE = 60.0
ROOT = Path(__file__).parents[2]


class AgentProcess:
    """One stream. `say` and `hear` speak the document's messages, as JSON with the document's field names."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        libc = ctypes.CDLL(None)
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.coven_process", address, token or ""],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: libc.prctl(1, signal.SIGKILL) and None,
        )
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._next() == {"headers": True}

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put({"ended": "KILLED"})

    def _next(self) -> dict[str, Any]:
        return self._lines.get(timeout=PATIENCE)

    def say(self, **payload: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(payload).encode() + b"\n")
        self.process.stdin.flush()

    def register(self, id: str, *capabilities: str) -> AgentProcess:
        self.say(register={"agent_id": id, "name": id, "capabilities": list(capabilities)})
        assert self.hear("welcome")["agent_id"] == id
        return self

    def respond(self, request: dict[str, Any], **event: Any) -> None:
        self.say(response={"request_id": request["request_id"], **event})

    def hear(self, what: str) -> dict[str, Any]:
        """The next message, which must be of this kind."""
        received = self._next()
        assert list(received) == [what], received
        return dict(received[what])

    def work(self) -> dict[str, Any]:
        return self.hear("send_message")

    def maybe_work(self, seconds: float = 1.0) -> dict[str, Any] | None:
        """The next message if it comes by then, which must be work."""
        try:
            received = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        assert list(received) == ["send_message"], received
        return dict(received["send_message"])

    def ended(self) -> str:
        """How the gateway ended the stream: a status code's name. What was said before that is skipped."""
        while "ended" not in (received := self._next()):
            pass
        return str(received["ended"])

    def close(self) -> None:
        """Nothing more to say: the stream ends in good order."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                pass


def main(address: str, token: str) -> None:
    import grpc
    from google.protobuf.json_format import MessageToDict, ParseDict

    from tests.support.coven import STREAM, document

    pb = document()

    def messages() -> Any:
        for line in sys.stdin:
            yield ParseDict(json.loads(line), pb.AgentMessage()).SerializeToString()

    def tell(event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    with grpc.insecure_channel(address, options=options) as channel:
        call = channel.stream_stream(STREAM)(messages(), metadata=metadata)
        try:
            call.initial_metadata()
            tell({"headers": True})
            for data in call:
                tell(MessageToDict(pb.ServerMessage.FromString(data), preserving_proto_field_name=True))
        except grpc.RpcError:
            pass
        tell({"ended": call.code().name, "details": call.details()})


if __name__ == "__main__":
    main(*sys.argv[1:])
