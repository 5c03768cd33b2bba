"""Files that a message names by their ids: the agent that says it kept them before, at `/api/agent/files`.

Chiffon, agentmsg and a2acp have no message for a file itself. Each has a place of its own for the name; what it means
is the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.commands import ReportProgress
from dragoman.core.ids import AgentId
from dragoman.core.ports import Files
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef

FIELD = "payload.file"
_id = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_encode = msgspec.json.Encoder().encode


async def named(files: Files | None, owner: AgentId, ids: Sequence[str], *, field: str | None = None) -> list[FileRef]:
    """The files with these ids; raises `Refused` where one is not there, or somebody else's."""
    found = []
    for id in ids:
        kept = None if files is None else await files.describe(id)
        if kept is None or kept.owner != owner:
            what = f"no file {id[:40]!r} of yours; keep it at /api/agent/files first"
            raise refuse(Kind.NOT_FOUND, what, field=field)
        found.append(kept.ref)
    return found


def id_in(payload: Any) -> str | None:
    """The id that `file` of a progress report has, by itself or in `{"id": …}` as it is told to others. A `file` that
    is nothing of ours is a field nobody here knows (all-D6)."""
    said = payload.get("file") if type(payload) is dict else None
    if type(said) is dict:
        said = said.get("id")
    return said.lower() if type(said) is str and _id(said) else None


async def with_file(command: ReportProgress, files: Files | None, id: str) -> ReportProgress:
    """The report, with the file that it names as part of the task; raises `Refused`."""
    [ref] = await named(files, command.principal, [id], field=FIELD)
    extra = {name: value for name, value in (command.content.extra or {}).items() if name != "file"}
    content = msgspec.structs.replace(command.content, file=ref, extra=extra or None)
    return msgspec.structs.replace(command, files=(ref,), content=content)
