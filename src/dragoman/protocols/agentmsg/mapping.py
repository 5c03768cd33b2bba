"""Agentmsg's payloads ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                              message     read by        written by
    --------------------------------  ----------  -------------  -------------
    TASK_ASSIGNMENT                   Request     hub, agent     caller, hub
    TASK_UPDATE                       Progress    hub, caller    agent, hub
    TASK_COMPLETE                     Result      hub, caller    agent, hub
    TASK_FAILED, ERROR_REPORT         Fault       hub, caller    agent, hub; in `errors`
    HELP_REQUEST, `ask: "person"`     Ask         hub            agent
    HELP_RESPONSE                     Json        hub, agent     agent, hub
    TASK_HANDOFF, a request           Handoff     hub, agent     agent

Fields of ours, beside the document's:

    TASK_ASSIGNMENT   in the task: `input`, `attempt`, `answer`, `attachments`, `handover`; in the metadata of its
                      context: `name`, `thread`, `parent_task_id`
    TASK_UPDATE       `output`, `status`, `step` {number, name, total?}, `thinking`, `tool_use` {id, name, input},
                      `tool_result` {id, output, is_error}, `file`, `usage`, `chunk`, `stream`, `agent_id`
    TASK_COMPLETE     `output`: the text of a result that is not text; `usage`, `chunk`, `agent_id`
    HELP_REQUEST      `ask`, `options`, `default`, `escalations`
    HELP_RESPONSE     `answer`: what a person answered, as JSON

`tree` is always the payload's JSON object as it came, with the fields that its struct does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.messages.tasks import (
    Ask,
    Context,
    Handoff,
    Json,
    Progress,
    Request,
    Result,
    Step,
    ToolResult,
    ToolUse,
    fitting,
)
from dragoman.protocols.agentmsg.records import ResourceReference, TaskConstraints
from dragoman.protocols.agentmsg.types import (
    Assignment,
    HelpRequest,
    HelpResponse,
    HelpResponseType,
    TaskComplete,
    TaskHandoffRequest,
    TaskUpdate,
)

PROTOCOL = "agentmsg"
PERSON = "person"
"""In `ask` of a HELP_REQUEST: only a person can answer it. In `responder_id`: a person did."""

ANSWERED = frozenset(HelpResponseType) - {HelpResponseType.UNABLE_TO_HELP}
_HELP = frozenset({"content", "response_type", "resources", "answer"})
_encode = msgspec.json.Encoder().encode


# -- tasks -------------------------------------------------------------------------------------------------------


def request_in(task: Assignment, tree: Json) -> Request:
    """What a caller asks for."""
    return Request(
        input={} if task.input is UNSET else task.input,
        context=None if task.context is None else fitting(Context, tree["context"]),
    )


def assigned_in(task: Assignment, tree: Json) -> Request:
    """What the hub assigns: in a later round also the answer to a question, or who handed the task over. What else the
    last owner knew is in the task's own fields."""
    context = tree.get("context") or {}
    metadata = context.get("metadata") or {}
    given = tree.get("handover") or metadata.get("handover")
    handoff = None
    if type(given) is dict:
        kept = {name: value for name, value in given.items() if name not in ("metadata", "history", "story")}
        handoff = fitting(Handoff, {"from": given.get("from_agent"), **kept})
    return Request(
        input=task.input,
        answer=task.answer,
        context=Context(
            metadata=metadata, history=context.get("history") or (), dependencies=context.get("dependencies") or ()
        ),
        handover=handoff,
    )


def progress_in(update: TaskUpdate, tree: Json) -> Progress:
    thinking, usage = tree.get("thinking"), tree.get("usage")
    return Progress(
        status="paused" if update.status == "paused" else "running",
        percent=None if update.progress is None else round(update.progress),
        message=update.message or None,
        output=update.output,
        step=fitting(Step, tree.get("step")),
        thinking=thinking if type(thinking) is str else None,
        tool_use=fitting(ToolUse, tree.get("tool_use")),
        tool_result=fitting(ToolResult, tree.get("tool_result")),
        usage=usage if type(usage) is dict else None,
    )


def progress_out(report: Progress) -> Json:
    """The fields of a TASK_UPDATE, without its task, its status and its file."""
    fields: Json = {}
    if report.percent is not None:
        fields["progress"] = max(0, min(100, report.percent))
    if report.message:
        fields["message"] = report.message
    if report.output:
        fields["output"] = report.output
        if report.chunk is not None:
            fields["chunk"], fields["stream"] = report.chunk, report.stream
    step: Any = {"number": 0, "name": report.step} if isinstance(report.step, str) else report.step
    ours = {"step": step, "thinking": report.thinking, "tool_use": report.tool_use, "tool_result": report.tool_result}
    return fields | {name: value for name, value in ours.items() if value is not None}


def result_in(done: TaskComplete, tree: Json) -> Result:
    """A result that is text is also the output, for callers that read only text."""
    output = tree.get("output")
    text = output if type(output) is str else done.result if type(done.result) is str else ""
    return Result(result=done.result, output=text or None, usage=None if done.usage is None else tree["usage"])


def result_out(done: Result) -> Json:
    """The fields of a TASK_COMPLETE, without its task. The output is the result where there is no other; an output that
    is the result, or its JSON, is written once."""
    value, output = done.value, done.output
    fields: Json = {"result": output or None if value is None else value}
    same = output.encode() == bytes(value) if output and isinstance(value, msgspec.Raw) else output == value
    if output and value is not None and not same:
        fields["output"] = output
    if done.chunk is not None:
        fields["chunk"] = done.chunk
    if done.usage is not None:
        fields["usage"] = done.usage
    return fields


# -- questions and help ------------------------------------------------------------------------------------------


def asks_person(tree: Json) -> bool:
    return tree.get("ask") == PERSON


def ask_in(request: HelpRequest, tree: Json, timeout_seconds: float | None) -> Ask:
    options = tree.get("options")
    return Ask(
        question=request.description,
        options=tuple(options) if type(options) is list else (),
        timeout_seconds=timeout_seconds,
        default=tree.get("default"),
        has_default="default" in tree,
    )


def ask_out(ask: Ask) -> Json:
    """The fields of a HELP_REQUEST to a person that the document does not have."""
    fields: Json = {"ask": PERSON}
    if ask.options:
        fields["options"] = ask.options
    if ask.has_default:
        fields["default"] = ask.default
    return fields


def help_in(response: HelpResponse, tree: Json) -> Json:
    """The answer in a HELP_RESPONSE, as the hub keeps it."""
    answer: Json = {"content": response.content, "response_type": response.response_type.value}
    return answer | {name: tree[name] for name in ("resources", "answer") if tree.get(name) is not None}


def answer_in(response: HelpResponse, tree: Json, default: Any) -> Any:  # Any: the person's own JSON
    """What a person answered: as JSON, if the hub sends it so, else as text; the default where no answer came."""
    return tree.get("answer", response.content) if response.response_type in ANSWERED else default


def help_out(answer: Any, *, answered: bool) -> Json:  # Any: the person's own JSON
    """The fields of a HELP_RESPONSE that an answer fills: of a helper (`help_in`), of a person, or of the hub for want
    of one."""
    given: Json = answer if type(answer) is dict and type(answer.get("content")) is str else {}
    kind = given.get("response_type", HelpResponseType.DIRECT_ANSWER.value) if answered else None
    if given:
        content = given["content"]
    elif not answered:
        content = "Nobody answered in time."
    else:
        content = answer if type(answer) is str else "" if answer is None else _encode(answer).decode()
    fields: Json = {
        "response_type": kind if kind in ANSWERED else HelpResponseType.UNABLE_TO_HELP.value,
        "content": content,
        "follow_up_required": False,
        "estimated_effort": 0,
    }
    if answered and answer is not None and (not given or given.keys() - _HELP):
        fields["answer"] = answer
    elif "answer" in given:
        fields["answer"] = given["answer"]
    if fits(resources := given.get("resources"), tuple[ResourceReference, ...]):
        fields["resources"] = resources
    return fields


# -- handoffs ----------------------------------------------------------------------------------------------------


def handoff_in(request: TaskHandoffRequest, tree: Json) -> Handoff:
    """What the owner of a task knows of it."""
    context = tree["context"]
    error = None if request.error is None else tree["error"]
    return Handoff(
        metadata=context["metadata"],
        history=context["history"],
        dependencies=context["dependencies"],
        constraints=tree["constraints"],
        error=error,
        recovery_attempts=UNSET if error is None else error["recovery_attempts"],
    )


def handoff_answer_out(answer: Mapping[str, Any], *, agent_id: str, due: str) -> Json:
    """The fields of a TASK_HANDOFF that answers. An agent that accepts names its terms (D8); where the answer has none,
    as that of a person, the task is done by its deadline (`due`)."""
    fields = {name: value for name, value in answer.items() if value is not None}
    fields["accepted"] = answer.get("accepted") is True
    fields["agent_id"] = str(answer.get("agent_id") or agent_id)
    if not fields["accepted"]:
        fields.setdefault("error", "Nobody took the task over; it stays with its owner.")
        return fields
    fields.setdefault("estimated_completion", due)
    fields.setdefault("requirements", [])
    if not fits(fields.get("constraints"), TaskConstraints):
        fields["constraints"] = {"required_capabilities": []}
    return fields


def fits(value: object, form: Any) -> bool:  # Any: mypy has no type for tuple[X, ...] as a value
    """Whether agents of this protocol can read it: an agent of another one may have written it."""
    if value is None:
        return False
    try:
        msgspec.convert(value, form)
    except msgspec.ValidationError:
        return False
    return True
