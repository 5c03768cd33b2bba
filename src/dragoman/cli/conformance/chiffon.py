"""Chiffon over HTTP: `boss` asks, `hand` works."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from dragoman.cli.conformance.cast import Answer, Cast, Mailbox, Player, now, without
from dragoman.cli.conformance.checklist import Checklist, expect

DOOR = "/api/agent"
checks: Checklist[Scene] = Checklist("chiffon")


class Scene:
    def __init__(self, cast: Cast) -> None:
        self.boss = cast.admit("chiffon", "boss")
        self.hand = cast.admit("chiffon", "hand")
        self.mail = {one.id: Mailbox(one, f"{DOOR}/messages", f"{DOOR}/ack") for one in (self.boss, self.hand)}
        self.done: dict[str, Any] = {}

    def envelope(self, by: Player, to: Player, kind: str, payload: Any, **replaced: Any) -> dict[str, Any]:
        said = {
            "protocol_version": "1.0", "message_id": str(uuid.uuid4()), "from_agent": by.id, "to_agent": to.id,
            "timestamp": now(), "trace_id": str(uuid.uuid4()), "request_id": str(uuid.uuid4()), "type": kind,
            "payload": payload,
        }  # fmt: skip
        return {**said, **replaced}

    def request(self, **replaced: Any) -> dict[str, Any]:
        work = {"task_id": str(uuid.uuid4()), "work_type": "conformance", "parameters": {"n": 1}, "hints": {}}
        return self.envelope(self.boss, self.hand, "work_request", work, **replaced)


def send(player: Player, message: Any) -> Answer:
    return player.post(f"{DOOR}/message", message)


def of_kind(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda one: one["type"] == kind


def refused(answer: Answer, code: int) -> dict[str, Any]:
    """The payload of an `error` envelope with that code."""
    said: dict[str, Any] = answer.json
    expect(answer.status >= 400, f"it was accepted with {answer.status}")
    expect(said.get("type") == "error", f"the refusal is no error envelope: {str(said)[:200]}")
    got = said["payload"]["error_code"]
    expect(got == code, f"the code is {got}, not {code}")
    payload: dict[str, Any] = said["payload"]
    return payload


@checks("CH-VER-1", "An agent says which versions it speaks when it registers.")
def registers(scene: Scene) -> None:
    for player in (scene.boss, scene.hand):
        wish = {"agent_id": player.id, "agent_type": player.id, "supported_versions": ["1.0"], "work_types": []}
        answer = player.post(f"{DOOR}/register", wish)
        expect(answer.status == 200, f"status {answer.status}: {answer.body[:200]!r}")
        expect(answer.json["protocol_version"] == "1.0", "another version than 1.0 was chosen")


@checks("CH-AUT-4", "A bad token is answered with 5004, which is not retried.")
def bad_token(scene: Scene) -> None:
    stranger = Player(scene.boss.hub, scene.boss.id, "0" * 32)
    refused(send(stranger, scene.request()), 5004)


@checks("CH-ENV-1", "A message without a required field is refused, and the field is named.")
def missing_field(scene: Scene) -> None:
    for field in ("message_id", "trace_id", "request_id", "type", "payload"):
        said = refused(send(scene.boss, without(scene.request(), field)), 5003)
        expect(field in str(said), f"the refusal does not name {field}")


@checks("all-D3", "What is no JSON is refused as a message, and the hub goes on.")
def no_json(scene: Scene) -> None:
    for data in (b"{", b"[]", b'{"a":1,"a":2}', b"\xff"):
        refused(send(scene.boss, data), 5003)


@checks("CH-VER-3", "A message of a version that is not spoken is answered with 5006.")
def other_version(scene: Scene) -> None:
    refused(send(scene.boss, scene.request(protocol_version="9.0")), 5006)


@checks("all-D1", "What a message says about its sender agrees with the credential.")
def spoofed(scene: Scene) -> None:
    refused(send(scene.boss, scene.request(from_agent=scene.hand.id)), 5004)


@checks("CH-FLW-1", "A request, statuses and a result pass between two ends.")
def whole_flow(scene: Scene) -> None:
    boss, hand = scene.boss, scene.hand
    request = scene.request(x_custom_fields={"unheard_of": [1]})
    answer = send(boss, request)
    expect(answer.status == 202, f"the request was answered with {answer.status}: {answer.body[:200]!r}")
    task = request["payload"]["task_id"]
    work = scene.mail[hand.id].next(lambda one: one["type"] == "work_request", "the work_request")
    scene.done = {"request": request, "work": work}
    expect(work["payload"]["task_id"] == task, "the task has another id for its agent")
    expect(work["payload"]["parameters"] == {"n": 1}, "the parameters are others")
    status = {"task_id": task, "status": "running", "progress_percent": 50}
    result = {"task_id": task, "status": "success", "exit_code": 0, "output": "done"}
    around = {"request_id": work["request_id"], "trace_id": work["trace_id"]}
    for kind, payload in (("work_status", status), ("work_result", result)):
        said = scene.envelope(hand, boss, kind, payload, **around)
        scene.done[kind] = said
        answer = send(hand, said)
        expect(answer.status == 202, f"{kind} was answered with {answer.status}: {answer.body[:200]!r}")
        scene.done[f"heard {kind}"] = scene.mail[boss.id].next(of_kind(kind), kind)
    expect(scene.done["heard work_result"]["payload"]["output"] == "done", "the output is another")


@checks("CH-ENV-8", "Every answer carries the trace_id of the request.")
def one_trace(scene: Scene) -> None:
    wanted = scene.done["request"]["trace_id"]
    for name in ("work", "heard work_status", "heard work_result"):
        expect(scene.done[name]["trace_id"] == wanted, f"{name} has another trace_id")


@checks("all-D6", "Fields nobody knows are accepted and travel on.")
def unknown_fields(scene: Scene) -> None:
    expect(scene.done["work"]["x_custom_fields"].get("unheard_of") == [1], "a custom field did not arrive")


@checks("CH-IDM-2", "A request seen before gets the first result, without a second run.")
def repeated(scene: Scene) -> None:
    request = {**scene.done["request"], "message_id": str(uuid.uuid4())}
    answer = send(scene.boss, request)
    expect(answer.status == 202, f"the repetition was answered with {answer.status}")
    again = scene.mail[scene.boss.id].next(lambda one: one["type"] == "work_result", "the first result")
    expect(again["payload"]["task_id"] == request["payload"]["task_id"], "it is another task's")
    scene.mail[scene.hand.id].quiet(lambda one: one["type"] == "work_request", "a second work_request")


@checks("all-D5", "Same id and other content is refused.")
def repeated_otherwise(scene: Scene) -> None:
    request = scene.done["request"]
    other = {**request, "payload": {**request["payload"], "parameters": {"n": 2}}}
    answer = send(scene.boss, other)
    expect(answer.status == 409, f"it was answered with {answer.status}")


@checks("CH-RES-2", "One result ends an exchange: another one is refused.")
def second_result(scene: Scene) -> None:
    said = scene.done["work_result"]
    other = {**said, "message_id": str(uuid.uuid4()), "payload": {**said["payload"], "output": "something else"}}
    answer = send(scene.hand, other)
    expect(answer.status >= 400, f"it was accepted with {answer.status}")


@checks("B4", "Cancelling reaches the agent at work.")
def cancelled(scene: Scene) -> None:
    request = scene.request()
    send(scene.boss, request)
    task = request["payload"]["task_id"]
    mail = scene.mail[scene.hand.id]
    mail.next(lambda one: one["payload"].get("task_id") == task, "the work_request")
    answer = scene.boss.post(f"/api/tasks/{task}/cancel", {})
    expect(answer.status in (200, 202), f"cancelling was answered with {answer.status}")
    told = mail.next(lambda one: one["type"] == "error", "the word that it is cancelled")
    expect(task in str(told), "it is about another task")
