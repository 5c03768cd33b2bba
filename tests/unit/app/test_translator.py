"""A message of one protocol as it arrives in another: every kind in every pair, by the code of the real hub."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from tests.conformance.agentmsg import samples as agentmsg_samples
from tests.fuzz import samples as fuzz_samples

from dragoman.app.translator.examples import AT, EXAMPLES, ID, INPUT, RESULT, TASK
from dragoman.app.translator.translator import Translation, translate
from dragoman.messages.faults import Refused
from dragoman.wire.errors import RemoteProtocolError

KINDS = ("request", "progress", "result", "error")
"""What there is an example of, in every protocol."""


async def told(source: str, target: str, tree: Any) -> Translation:
    return await translate(source, target, json.dumps(tree).encode())


@pytest.mark.parametrize("target", EXAMPLES)
@pytest.mark.parametrize("source", EXAMPLES)
async def test_every_kind_of_message_arrives(source: str, target: str) -> None:
    for kind in KINDS:
        found = await told(source, target, EXAMPLES[source][kind])
        assert (found.towards, bool(found.arrives)) == ("agent" if kind == "request" else "caller", True), kind
        words = json.dumps(found.arrives)
        expected = {"request": "site.yml", "progress": "configure", "result": "kuma.lan", "error": "Out of memory"}[
            kind
        ]
        assert expected in words, kind
    assert source != target or not [one for one in found.losses if one.how == "near"]


async def test_the_losses_of_a_message_are_shown_and_nothing_else() -> None:
    found = await told("forge", "coven", EXAMPLES["forge"]["request"])
    assert {one.feature.value: one.how.value for one in found.losses} == {
        "work type": "near", "structured input": "near", "priority": "near", "time limit": "near",
        "name and description": "near",
    }  # fmt: skip
    lost = await told("agentmsg", "forge", EXAMPLES["agentmsg"]["result"])
    assert [(one.feature.value, one.how.value) for one in lost.losses][-1] == ("resources used", "lost")
    assert found.understood["input"] == INPUT
    assert lost.understood["result"] == RESULT


@pytest.mark.parametrize("target", EXAMPLES)
async def test_files_arrive_by_their_names_and_whole_where_the_message_carries_them(target: str) -> None:
    file = {"filename": "notes.txt", "data": "aGk=", "mimeType": "text/plain"}
    for source, kind, where in (
        ("forge", "request", ("payload", "attachments")),
        ("forge", "progress", ("payload", "file")),
        ("coven", "request", ("attachments",)),
    ):
        asked = json.loads(json.dumps(EXAMPLES[source][kind]))
        place = asked[where[0]] if len(where) > 1 else asked
        place[where[-1]] = [file] if where[-1] == "attachments" else file
        found = await told(source, target, asked)
        arrived = json.dumps(found.arrives)
        assert "notes.txt" in arrived, source
        assert ("aGk=" in arrived) is (target == "coven"), source
        assert found.understood["file" if kind == "progress" else "attachments"]


async def test_names_and_times_are_the_messages_own() -> None:
    """One that was said long ago, with a deadline and dependencies that nobody here knows."""
    asked = json.loads(json.dumps(EXAMPLES["agentmsg"]["request"]))
    asked["payload"]["task"]["context"]["dependencies"] = ["first", TASK.replace("6f", "7f")]
    asked["metadata"]["ttl_ms"] = 1000
    [arrived] = (await told("agentmsg", "forge", asked)).arrives
    assert (arrived["timestamp"], len(arrived["payload"]["task"]["dependencies"])) == (AT.replace(".000000", ""), 2)
    [same] = (await told("agentmsg", "agentmsg", asked)).arrives
    assert same["payload"]["task"]["context"]["dependencies"] == asked["payload"]["task"]["context"]["dependencies"]


async def test_cancel_help_and_questions_have_their_message() -> None:
    cancel = {"id": ID, "type": "request:cancel-task", "timestamp": AT, "payload": {"taskId": TASK, "reason": "no use"}}
    assert [one["cancel"]["reason"] for one in (await told("forge", "coven", cancel)).arrives] == ["no use"]
    assert (await told("forge", "chiffon", cancel)).arrives[0]["payload"]["error_code"] == 5900
    ask = {
        "id": ID, "type": "request:ask-user", "timestamp": AT, "agentId": "a",
        "payload": {"taskId": TASK, "question": "go?"},
    }  # fmt: skip
    assert "go?" in json.dumps((await told("forge", "coven", ask)).arrives)
    found = await told("agentmsg", "coven", agentmsg_samples.tree("HelpRequest"))
    assert (len(found.arrives), [one.feature.value for one in found.losses]) == (1, ["request for help"])
    handed = await told("agentmsg", "forge", agentmsg_samples.tree("TaskHandoffRequest"))
    assert "handover" in handed.arrives[0]["payload"]["task"]


@pytest.mark.parametrize(
    ("source", "change", "said"),
    [
        ("chiffon", {"payload": {}}, "task_id"),
        ("a2acp", {"security": {"auth_token": "t", "encryption": "aes256"}}, ""),
        ("a2acp", {"intent": "discover_capabilities"}, "nobody else hears of it"),
        ("forge", {"type": "notify:task-assigned"}, "request:"),
        ("forge", {"type": "request:get-task", "payload": {"taskId": TASK}}, "nobody else hears of it"),
        ("coven", {"contents": 1}, "SendMessage"),
    ],
)
async def test_what_cannot_be_carried_says_why(source: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises((Refused, RemoteProtocolError)) as raised:
        await told(source, "chiffon", {**EXAMPLES[source]["request"], **change})
    assert said in f"{raised.value} {getattr(raised.value, 'field', '')}"


@pytest.mark.parametrize("target", EXAMPLES)
@pytest.mark.parametrize("source", ["chiffon", "forge", "agentmsg", "a2acp"])
async def test_any_good_message_is_delivered_or_refused_with_a_sentence(source: str, target: str) -> None:
    carried = 0
    for tree in getattr(fuzz_samples, source)():
        with contextlib.suppress(Refused, RemoteProtocolError):
            carried += bool((await told(source, target, tree)).kind)
    assert carried
