"""`dragoman play FILE`: a conversation that is written down, played by real agents at a real hub.

The hub gets the parties under the names that the file gives them, and their domains are allowed to work together. Every
message is sent as it is written, and what comes is compared with what is expected; each party is spoken for by plain
HTTP, so a flow that plays is a check from outside as well. At the end the parties are removed with all that they left,
and the policies are taken back; `--fresh` plays at a hub of its own, which ends with the play.

    → sent        ✓ came, as expected        ✗ not as expected: the play ends there        • came, but in no step

    a message that is sent               who waits for its answer
    -----------------------------------  ---------------------------------------------------------------------------
    a request                            no step: the play goes on, the answer is put into the inbox when it comes
    a request to be answered later,      the step: the hub only says that it has it, or why not
    a response, an event, an error

An expectation takes the first message of its party's inbox that is what was expected.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.scenarios.fake_agents import FakeAgent, FakeAgents, now
from dragoman.cli.scenarios.steps import Outcome, Unmet, hub_for, run
from dragoman.cli.scenarios.steps import Step as ScenarioStep

if TYPE_CHECKING:
    from dragoman.protocols.a2acp.contracts import DomainPolicy
    from dragoman.protocols.a2acp.flow import Flow, Player, Step
    from dragoman.protocols.a2acp.types import Agent

PROTOCOL = "a2acp"
BROKER = "broker"
TOKEN_SECONDS = 300
WIDEST = 80
"""Characters of what a message says."""
AROUND = frozenset({"correlation_id", "contract_id", "collaboration_id", "traceparent"})
"""What the protocol itself puts into payloads: it says nothing about what the message says."""

Expired = Callable[["Agent", str], str]
"""A token that is over, of which agent and for whom: only the holder of the hub's keys can make one."""


EXPIRED = "token:expired"
SET_BACK = "A token whose times were set back, so that its signature does not fit (--fresh signs one that has expired)."
"""What a step sends instead where the hub's keys are out of reach."""


def play(
    file: Annotated[Path, Parameter(help="A flow, for example examples/agent-collaboration-flow.json.")],
    /,
    *,
    fresh: Annotated[bool, Parameter(negative=(), help="Use a temporary hub, which ends with the play.")] = False,
    patience: Annotated[float, Parameter(help="Seconds to wait for each expected message.")] = 10.0,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Play a scripted conversation between agents, and compare each message with what the script expects."""
    flow = _read(file)
    flow = flow if fresh else _without_keys(flow)
    with ExitStack() as after:
        hub, data = hub_for(location, fresh=fresh, after=after, fix=f"dragoman play {line(file)} --fresh")
        expired: Expired | None = partial(_expired, data) if fresh else None
        for policy in flow.policies:
            after.enter_context(_allowed(hub, policy))
        fakes = after.enter_context(FakeAgents(hub))
        parties = {name: _admitted(fakes, player, file) for name, player in flow.parties.items()}
        exchange = Exchange(flow, parties, expired=expired, patience=patience)
        lines = Lines(flow, table=output == "table")
        report = printing.Report(output)
        began, good, matched = time.monotonic(), True, 0
        steps = [ScenarioStep("", step.about, partial(Exchange.play, step=step)) for step in flow.steps]
        for step, outcome in zip(flow.steps, run(steps, exchange, until_failure=True), strict=False):
            report.add(f"\n{line(step.part)}", lines.of(step, outcome), _record(step, outcome))
            good = bool(outcome.good)
            matched += step.expect is not None and good
        if output == "table":
            lines.end(parties)
        report.end("played", flow=flow.name, ok=good, steps=len(flow.steps))
        expected = sum(step.expect is not None for step in flow.steps)
        took = printing.duration(time.monotonic() - began)
        printing.verdict(good, f"{line(flow.name)}: {matched} of {expected} messages came as expected, {took}")
        if not good:
            printing.suggest(f"dragoman play {line(file)} -o json", "dragoman audit query --outcome refused")
        return Exit.OK if good else Exit.FAILED


def _read(file: Path) -> Flow:
    from dragoman.protocols.a2acp import flow

    try:
        return flow.read(file.read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CommandError(
            Exit.USAGE, f"{line(file)} is not a flow: {line(why)}", next="see examples/*-flow.json"
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


def _without_keys(flow: Flow) -> Flow:
    """The flow as it is without the hub's keys: a step that wants a token that has expired says what it sends."""
    from msgspec.structs import replace

    from dragoman.protocols.a2acp.flow import blanks

    steps = (replace(step, about=SET_BACK) if EXPIRED in blanks(step.send) else step for step in flow.steps)
    return replace(flow, steps=tuple(steps))


def _admitted(fakes: FakeAgents, player: Player, file: Path) -> FakeAgent:
    """The agent for one party, with the capabilities that it declares."""
    import msgspec

    party = player.agent
    fields = {"domain": party.domain, "version": party.version, "capabilities": list(player.grants)}
    try:
        agent = fakes.admit(PROTOCOL, "", id=party.agent_id, **fields)
    except CommandError as failure:
        if failure.code is Exit.NOT_ALLOWED:  # an agent of that name is here already
            failure.next = f"dragoman play {line(file)} --fresh   ·   dragoman agent rm {line(party.agent_id)}"
        raise
    if player.capabilities:
        declared = {**msgspec.to_builtins(party), "capabilities": msgspec.to_builtins(player.capabilities)}
        fakes.hub.under(agent.token).ask("POST", "agents", body=declared, base="/a2acp")
    return agent


@contextmanager
def _allowed(hub: Hub, policy: DomainPolicy) -> Iterator[None]:
    """A domain policy, for as long as the play lasts; what is set already about these two stays as it is."""
    pair = {"source": policy.source_domain, "target": policy.target_domain}
    if any(pair.items() <= entry.items() for entry in hub.get("policies", "domains")["domains"]):
        yield
        return
    terms = {"allow": policy.allow, "intents": list(policy.intents), "encrypt": policy.encrypt}
    hub.post("policies", "domains", body={**pair, **terms})
    try:
        yield
    finally:
        hub.ask("DELETE", "policies", "domains", query=pair)


# -- the exchange ------------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """What there is to see of a step."""

    message: Mapping[str, Any]
    remark: str = ""


class Exchange:
    """The parties of a flow, what was kept of their messages, and their tokens."""

    def __init__(
        self, flow: Flow, parties: Mapping[str, FakeAgent], *, expired: Expired | None, patience: float
    ) -> None:
        self._flow = flow
        self._parties = parties
        self._expired = expired
        self._patience = patience
        self._kept: dict[str, Any] = {}
        self._tokens: dict[tuple[str, str], str] = {}

    def play(self, step: Step) -> Shown:
        return self._send(step) if step.send is not None else self._expect(step)

    def _send(self, step: Step) -> Shown:
        by = self._parties[step.by]
        message = self._filled(step)
        if step.times == 1 and not step.later and message.get("message_type") == "request":
            by.post_in_background(lambda: _posted(by, message, later=False)[1])
            return Shown(message)
        accepted = refused = 0
        for turn in range(step.times):
            taken, answer = _posted(by, self._filled(step) if turn else message, later=step.later)
            accepted, refused = accepted + taken, refused + (not taken)
            if answer is not None and (taken or refused == 1):  # one refusal is to be seen; the rest say the same
                by.inbox.keep(answer)
        remark = f"{step.times} times: {accepted} taken, {refused} refused" if step.times > 1 else ""
        return Shown(message, remark)

    def _expect(self, step: Step) -> Shown:
        from dragoman.protocols.a2acp import flow

        closest: tuple[list[str], dict[str, Any]] | None = None

        def matches(message: dict[str, Any]) -> bool:
            nonlocal closest
            found = flow.differences(step.expect, message, self._kept)
            if found and (closest is None or len(found) < len(closest[0])):
                closest = found, message
            return not found

        message = self._parties[step.by].inbox.find(matches, self._patience)
        if message is None and closest is None:
            raise Unmet(f"nothing came within {self._patience:g} s", message={})
        if message is None:
            assert closest is not None
            self._parties[step.by].inbox.remove(closest[1])
            raise Unmet(*closest[0], message=closest[1])
        try:
            self._kept |= flow.taken(step, message)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Unmet(f"what is to be kept is not there: {error}", message=message) from None
        return Shown(message)

    def _filled(self, step: Step) -> dict[str, Any]:
        from dragoman.protocols.a2acp import flow

        message = step.send or {}
        audience = message.get("target_agent", {}).get("agent_id", "")
        known: dict[str, Any] = {**self._kept, "id": str(uuid.uuid4()), "now": now()}
        for name in flow.blanks(message):
            if name.startswith("token"):
                known[name] = self._blank_token(name, step.by, audience)
        filled: dict[str, Any] = flow.fill(message, known.__getitem__)
        return filled

    def _blank_token(self, name: str, by: str, audience: str) -> str:
        if name == "token:foreign":
            return self._token(next(party for party in self._parties if party != by), audience)
        if name == EXPIRED:
            if self._expired is not None:
                return self._expired(self._flow.parties[by].agent, audience)
            return _set_back(self._token(by, audience))
        return self._token(by, audience)

    def _token(self, party: str, audience: str) -> str:
        """A good token of this party, fetched once for each audience."""
        if (party, audience) not in self._tokens:
            agent, grants = self._parties[party], list(self._flow.parties[party].grants)
            asked = {"target_agent_id": audience, "requested_capabilities": grants, "ttl": TOKEN_SECONDS}
            answer = agent.post("/auth/token", {"agent_id": agent.id, **asked})
            if answer.status != 200:
                reason = line(answer.body[:200].decode("utf-8", "replace"))
                problem = f"{line(agent.id)} got no token for {line(audience)}: {answer.status} {reason}"
                raise CommandError(Exit.UNREACHABLE, problem, next="dragoman doctor")
            self._tokens[party, audience] = str(answer.json["token"])
        return self._tokens[party, audience]


def _posted(agent: FakeAgent, message: Mapping[str, Any], *, later: bool) -> tuple[bool, dict[str, Any] | None]:
    """Whether the hub took it, and its answer, if that is a message or a refusal."""
    # The message carries its own credential: the bearer is not needed here, and not sent.
    headers = {"Prefer": "respond-async"} if later else {}
    answer = agent.post("/a2acp/messages", message, bearer=False, headers=headers)
    taken = answer.status < 400
    try:
        content = json.loads(answer.body)
    except ValueError:
        content = answer.body.decode("utf-8", "replace")[:200]
    if isinstance(content, dict) and "message_type" in content:
        return taken, content
    return taken, None if taken else {"http_status": answer.status, "said": content}


def _set_back(token: str) -> str:
    """The token as if it were of yesterday. Only its issuer could sign that: it is refused for either reason."""
    header, claims, signature = token.split(".")
    decoded = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    decoded = {name: value - 86_400 if name in ("exp", "iat", "nbf") else value for name, value in decoded.items()}
    claims = base64.urlsafe_b64encode(json.dumps(decoded).encode()).decode().rstrip("=")
    return f"{header}.{claims}.{signature}"


# -- what a person and a program see -----------------------------------------------------------------------------


class Lines:
    """What a person sees of a play: a line for each message, under the name of its part."""

    def __init__(self, flow: Flow, *, table: bool) -> None:
        self._names = {player.agent.agent_id: name for name, player in flow.parties.items()}
        self._width = max(len(name) for name in (*flow.parties, BROKER))
        if table:
            printing.note(f"{line(flow.name)}: {line(flow.about)}")
            for name, player in flow.parties.items():
                agent = player.agent
                who = f"{agent.agent_id} {agent.version} of {agent.domain}"
                printing.note(f"  {line(name).ljust(self._width)}  {line(who)}")

    def of(self, step: Step, outcome: Outcome) -> list[str]:
        mark = "→" if step.send is not None else printing.mark(outcome.good, sys.stdout)
        message, remark = _shown(outcome)
        message = message or step.expect or {}
        # Of what is sent, the file may say why; of what came, it counts what it was.
        gist = remark or (step.about if step.send is not None else "") or self._gist(message)
        first = f"  {mark} {self._line(message, step.by)}  {line(gist)}".rstrip()
        return [first, *(f"      {line(difference)}" for difference in outcome.why)]

    def end(self, parties: Mapping[str, FakeAgent]) -> None:
        """What came and was in no step."""
        rest = [(name, message) for name, agent in parties.items() for message in agent.inbox.rest()]
        for kind, count in Counter(self._line(message, by).rstrip() for by, message in rest).most_common():
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


def _shown(outcome: Outcome) -> Shown:
    return outcome.shown if isinstance(outcome.shown, Shown) else Shown(outcome.shown or {})


def _record(step: Step, outcome: Outcome) -> dict[str, Any]:
    """A step in JSON, without its credential."""
    message, remark = _shown(outcome)
    message = dict(message)
    if isinstance(message.get("security"), dict):
        message["security"] = {**message["security"], "auth_token": "[token]"}
    return {
        "part": step.part,
        "by": step.by,
        "does": "send" if step.send is not None else "expect",
        "ok": outcome.good,
        "differences": list(outcome.why),
        "seconds": round(outcome.seconds, 4),
        "remark": remark,
        "message": message,
    }


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = value.get("contract_id")
        return f"{name}={inner}" if inner else f"{name}={{{len(value)}}}"
    if isinstance(value, list):
        return f"{name}=[{len(value)}]"
    return f"{name}={json.dumps(value) if not isinstance(value, str) else value}"
