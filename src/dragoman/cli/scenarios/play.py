"""`dragoman play FILE`: a conversation that is written down, played by real agents at a real hub.

The parties are let in under the names that the file gives them, their domains are allowed to work together, every
message is sent as it is written, and what comes is compared with what is expected. At the end what they left is
cleared away (`cli.curtain`), they are put out again and the policies are taken back; `--fresh` plays at a hub of its
own, which ends with the play.

    → said        ✓ heard, as expected        ✗ not as expected: the play ends there        • heard, but in no step
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dragoman.app.datadir import DataDir
from dragoman.cli import printing
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.options import LOCAL, Form, HubLocation, Output
from dragoman.cli.scenarios.curtain import at_rest, no_dead_letters
from dragoman.cli.scenarios.temporary_hub import temporary_hub

if TYPE_CHECKING:
    from dragoman.cli.scenarios.stage import Expired, Played
    from dragoman.protocols.a2acp.contracts import DomainPolicy
    from dragoman.protocols.a2acp.flow import Flow, Player
    from dragoman.protocols.a2acp.types import Agent

PROTOCOL = "a2acp"
BROKER = "broker"
WIDEST = 80
"""Characters of what a message says."""
AROUND = frozenset({"correlation_id", "contract_id", "collaboration_id", "traceparent"})
"""What the protocol itself puts into payloads: it says nothing about what the message says."""


def play(
    file: Annotated[Path, Parameter(help="A flow, for example examples/agent-collaboration-flow.json.")],
    /,
    *,
    fresh: Annotated[bool, Parameter(negative=(), help="At a hub of its own, which ends with the play.")] = False,
    patience: Annotated[float, Parameter(help="Seconds to wait for what is expected.")] = 10.0,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Play a conversation between agents that is written down, and compare what comes with what it expects."""
    told = _read(file)
    with ExitStack() as after:
        expired: Expired | None = None
        if fresh:
            hub, data = after.enter_context(temporary_hub())
            expired = partial(_expired, data)
            verify: ssl.SSLContext | bool = True
        else:
            try:
                hub = Hub.find(location)
            except CommandError as failure:
                if failure.code is Exit.UNREACHABLE:
                    fix = f"dragoman play {line(file)} --fresh   (a hub of its own)   ·   dragoman dev"
                    raise CommandError(failure.code, failure.sentence, next=fix) from failure
                raise
            verify = _trusted(hub, location)
        ids = {name: player.agent.agent_id for name, player in told.parties.items()}
        after.enter_context(no_dead_letters(hub, frozenset(ids.values())))
        for policy in told.policies:
            after.enter_context(_allowed(hub, policy))
        secrets = {name: after.enter_context(_let_in(hub, player, file)) for name, player in told.parties.items()}
        after.enter_context(at_rest(hub, {ids[name]: secret for name, secret in secrets.items()}))
        return _perform(told, hub.url, secrets, verify, expired, patience, output, file)


def _read(file: Path) -> Flow:
    from dragoman.protocols.a2acp import flow

    try:
        return flow.read(file.read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CommandError(
            Exit.USAGE, f"{line(file)} is no flow: {line(why)}", next="see examples/*-flow.json"
        ) from error


# -- before and after --------------------------------------------------------------------------------------------


def _expired(data: Path, whose: Agent, whom: str) -> str:
    from dragoman.security.jwt import Authority, Issued
    from dragoman.security.keys import KeyFile

    now = int(time.time())
    ring = KeyFile(data / "keys").open(now)
    made = Authority(ring).issue(
        subject=whose.agent_id, audience=whom, domain=whose.domain, capabilities=(), ttl=3600, now=now - 7200
    )
    assert isinstance(made, Issued), made
    return made.token


@contextmanager
def _let_in(hub: Hub, player: Player, file: Path) -> Iterator[str]:
    """The secret of an agent that is here for the play."""
    agent = player.agent
    body = {
        "agent_id": agent.agent_id,
        "protocol": PROTOCOL,
        "domain": agent.domain,
        "version": agent.version,
        "capabilities": list(player.grants),
    }
    try:
        secret = str(hub.post("agents", body=body)["token"])
    except CommandError as failure:
        if failure.code is Exit.NOT_ALLOWED:  # somebody of that name is here already
            fix = f"dragoman play {line(file)} --fresh   ·   dragoman agent rm {line(agent.agent_id)}"
            raise CommandError(failure.code, failure.sentence, next=fix) from failure
        raise
    try:
        if player.capabilities:
            import msgspec

            declared = {**msgspec.to_builtins(agent), "capabilities": msgspec.to_builtins(player.capabilities)}
            hub.under(secret).ask("POST", "agents", body=declared, base="/a2acp")
        yield secret
    finally:
        try:
            hub.delete("agents", agent.agent_id)
        except CommandError as failure:  # how the play went counts more
            printing.note(f"  {line(agent.agent_id)} could not be put out ({failure.sentence})")


@contextmanager
def _allowed(hub: Hub, policy: DomainPolicy) -> Iterator[None]:
    """A domain policy, for as long as the play lasts; what is said already about these two stays as it is."""
    pair = {"source": policy.source_domain, "target": policy.target_domain}
    if any(pair.items() <= entry.items() for entry in hub.get("policies", "domains")["domains"]):
        yield
        return
    wish = {"allow": policy.allow, "intents": list(policy.intents), "encrypt": policy.encrypt}
    hub.post("policies", "domains", body={**pair, **wish})
    try:
        yield
    finally:
        hub.ask("DELETE", "policies", "domains", query=pair)


def _trusted(hub: Hub, location: HubLocation) -> ssl.SSLContext | bool:
    """Whom the players believe, by TLS: as the command itself does."""
    if not hub.url.startswith("https:"):
        return True
    from dragoman.security import trust

    here = DataDir(location.directory).whereabouts()
    ours = here is not None and Hub(here.http, None).url == hub.url
    return trust.context(here.certificate if here is not None and ours else "")


# -- the play ----------------------------------------------------------------------------------------------------


def _perform(
    told: Flow,
    url: str,
    secrets: Mapping[str, str],
    verify: ssl.SSLContext | bool,
    expired: Expired | None,
    patience: float,
    output: Form,
    file: Path,
) -> int:
    from dragoman.cli.scenarios.stage import Broken, Stage

    poster = Poster(told, output)
    began = time.monotonic()

    async def perform() -> tuple[bool, list[tuple[str, dict[str, Any]]]]:
        stage = Stage(url, told, secrets, verify=verify, expired=expired, patience=patience)
        return await stage.play(poster.show), stage.unheard()

    try:
        good, rest = asyncio.run(perform())
    except Broken as broken:
        raise CommandError(Exit.UNREACHABLE, line(broken), next="dragoman doctor") from broken
    poster.end(good, rest)
    heard = sum(step.expect is not None for step in told.steps)
    printing.verdict(
        good,
        f"{line(told.name)}: {poster.matched} of {heard} messages came as expected,"
        f" {printing.duration(time.monotonic() - began)}",
    )
    if not good:
        printing.suggest(f"dragoman play {line(file)} -o json", "dragoman audit query --outcome refused")
    return Exit.OK if good else Exit.FAILED


class Poster:
    """What a person sees of a play: a line for each message, under the name of its part."""

    def __init__(self, told: Flow, form: Form) -> None:
        self.matched = 0
        self._form = form
        self._summary = told
        self._names = {player.agent.agent_id: name for name, player in told.parties.items()}
        self._width = max(len(name) for name in (*told.parties, BROKER))
        self._part = ""
        self._shown: list[dict[str, Any]] = []
        if form == "table":
            printing.note(f"{line(told.name)}: {line(told.about)}")
            for name, player in told.parties.items():
                agent = player.agent
                who = f"{agent.agent_id} {agent.version} of {agent.domain}"
                printing.note(f"  {line(name).ljust(self._width)}  {line(who)}")

    def show(self, played: Played) -> None:
        step = played.step
        self.matched += step.expect is not None and played.matched
        if self._form != "table":
            self._record(played)
            return
        if step.part != self._part:
            self._part = step.part
            print(f"\n{line(step.part)}")
        mark = "→" if step.send is not None else printing.mark(played.matched, sys.stdout)
        message = played.message or step.expect or {}
        # Of what is said, the file may say why; of what is heard, it counts what it was.
        gist = played.remark or (step.about if step.send is not None else "") or self._gist(message)
        print(f"  {mark} {self._line(message, step.by)}  {line(gist)}".rstrip(), flush=True)
        for difference in played.differences:
            print(f"      {line(difference)}")

    def end(self, good: bool, rest: list[tuple[str, dict[str, Any]]]) -> None:
        if self._form == "json":
            steps = len(self._summary.steps)
            printing.document({"flow": self._summary.name, "ok": good, "steps": steps, "played": self._shown})
        elif self._form == "table":
            kinds = Counter(self._line(message, by).rstrip() for by, message in rest)
            for kind, count in kinds.most_common():
                print(f"  {printing.mark(None, sys.stdout)} {kind}  {count} more, in no step")

    def _line(self, message: Mapping[str, Any], by: str) -> str:
        """From whom to whom, and what sort of message it is."""
        source, target = (self._name(message.get(end)) for end in ("source_agent", "target_agent"))
        kind = f"{message.get('message_type', 'answer')} {message.get('intent') or ''}".strip()
        return f"{(source or BROKER).ljust(self._width)} ▸ {(target or by).ljust(self._width)}  {line(kind).ljust(34)}"

    def _name(self, agent: Any) -> str:
        id = agent.get("agent_id", "") if isinstance(agent, dict) else ""
        return line(self._names.get(id, BROKER if id else ""))

    def _gist(self, message: Mapping[str, Any]) -> str:
        """What a message says, in a few words."""
        payload = message.get("payload") or {name: message[name] for name in ("http_status", "said") if name in message}
        error = payload.get("error")
        if isinstance(error, dict):
            after = f" (again in {error['retry_after']} s)" if error.get("retry_after") else ""
            text = f"{error.get('code')}{after}: {error.get('message')}"
        else:
            text = " ".join(_word(name, value) for name, value in payload.items() if name not in AROUND)
        return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"

    def _record(self, played: Played) -> None:
        step, message = played.step, dict(played.message)
        if isinstance(message.get("security"), dict):
            message["security"] = {**message["security"], "auth_token": "[token]"}
        shown = {
            "part": step.part,
            "by": step.by,
            "does": "send" if step.send is not None else "expect",
            "ok": played.matched,
            "differences": list(played.differences),
            "seconds": round(played.seconds, 4),
            "remark": played.remark,
            "message": message,
        }
        self._shown.append(shown)
        if self._form == "jsonl":
            printing.document(shown, "jsonl")


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = value.get("contract_id")
        return f"{name}={inner}" if inner else f"{name}={{{len(value)}}}"
    if isinstance(value, list):
        return f"{name}=[{len(value)}]"
    return f"{name}={json.dumps(value) if not isinstance(value, str) else value}"
