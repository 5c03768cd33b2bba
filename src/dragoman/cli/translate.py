"""`dragoman translate`: a message of one protocol, as it would arrive in another. It needs no hub."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dragoman.cli import escaping, printing
from dragoman.cli.arguments import Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line

if TYPE_CHECKING:
    from dragoman.app.translator.translator import Translation

Spoken = Literal["chiffon", "coven", "forge", "agentmsg", "a2acp"]
MARKS = {"near": "≈", "lost": "✗"}


def translate(
    source: Annotated[Spoken, Parameter(name="FROM", help="The protocol of the message.")],
    target: Annotated[Spoken, Parameter(name="TO", help="The protocol of the receiver.")],
    given: Annotated[
        str | None,
        Parameter(
            name="MESSAGE", allow_leading_hyphen=True, help="JSON, a file, or - for stdin; without it, an example."
        ),
    ] = None,
    /,
    *,
    example: Annotated[
        Literal["request", "progress", "result", "error"], Parameter(help="Which example, where no message is given.")
    ] = "request",
    output: Output = "table",
) -> None:
    """Show a message of one protocol as it would arrive in another, with what is lost on the way.

    A message is JSON. Coven's is what its proto file says, in protobuf's JSON form: SendMessage of a caller,
    MessageResponse of an agent.
    """
    from dragoman.app.translator.examples import EXAMPLES
    from dragoman.app.translator.translator import translate as translated
    from dragoman.messages.faults import Refused
    from dragoman.wire.errors import RemoteProtocolError

    shown = EXAMPLES[source][example] if given is None else None
    data = _read(given) if given is not None else _encoded(shown)
    try:
        translation = asyncio.run(translated(source, target, data))
    except RemoteProtocolError as error:
        place = f" (field {line(error.field)})" if error.field else ""
        raise CommandError(
            Exit.USAGE, f"this is not a message of {source}: {line(error.what)}{place}", next=_see(source)
        ) from None
    except Refused as refused:
        raise CommandError(
            Exit.USAGE, f"this message cannot be translated: {line(refused.fault.message)}", next=_see(source)
        ) from None
    _show(translation, shown, output)


def _see(source: str) -> str:
    return f"see what one looks like: dragoman translate {source} {source}"


def _encoded(tree: Any) -> bytes:
    import json

    return json.dumps(tree).encode()


def _read(given: str) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read()
    if given.lstrip().startswith(("{", "[")):
        return given.encode("utf-8", "surrogateescape")
    try:
        return Path(given).read_bytes()
    except OSError as error:
        raise CommandError(
            Exit.USAGE, f"{line(given)} cannot be read: {error.strerror}", next="give a message in JSON, a file, or -"
        ) from None


def _show(translation: Translation, given: Any, output: Output) -> None:
    import msgspec

    tree: dict[str, Any] = msgspec.to_builtins(translation)
    if printing.as_data(tree if given is None else {**tree, "message": given}, output):
        return
    lost = [one for one in tree["losses"] if one["how"] == "lost"]
    whom = "the agent" if translation.towards == "agent" else "the caller"
    if given is not None:
        printing.note(f"{line(translation.source)} message:\n{escaping.as_json(given, indent=2)}")
    printing.note(f"the hub understands: {line(printing.cell(tree['understood']))}")
    printing.note(
        f"{whom} receives, in {line(translation.target)}:" if translation.arrives else f"{whom} receives nothing"
    )
    for message in translation.arrives:
        printing.document(message)
    _losses(tree["losses"])
    printing.verdict(not lost, _verdict(translation, lost))
    if translation.source == translation.target:
        printing.suggest(f"dragoman translate {translation.source} coven")
    elif translation.towards == "agent":
        printing.suggest(
            f"dragoman translate {translation.target} {translation.source} --example result   (the way back)"
        )
    else:
        printing.suggest(f"dragoman translate {translation.target} {translation.source}   (the way there)")


def _losses(losses: Sequence[dict[str, Any]]) -> None:
    width = max((len(one["feature"]) for one in losses), default=0)
    for one in losses:
        printing.note(f"  {MARKS[one['how']]} {one['feature'].ljust(width)}  {line(one['why'])}")


def _verdict(translation: Translation, lost: Sequence[Any]) -> str:
    arrived = f"{line(translation.kind)} arrives in {line(translation.target)}"
    if lost:
        return f"{arrived} without {', '.join(line(one['feature']) for one in lost)}"
    return (
        f"{arrived}, and nothing of it is lost"
        if translation.arrives
        else f"nothing arrives in {line(translation.target)}"
    )
