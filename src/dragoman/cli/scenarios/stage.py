"""The stage of `dragoman play`: every party of a flow as a real agent at a real hub, spoken for by plain HTTP.

Nothing of the SDK is used: what is written in the file goes out by POST, what comes back in an answer or by a long poll
is what the party heard. So a flow that plays is a check from outside as well.

    a message that is sent               who waits for its answer
    -----------------------------------  ---------------------------------------------------------------------------
    a request                            nobody: the story goes on, the answer is heard when it comes
    a request to be answered later,      the step: the hub only says that it has it, or why not
    a response, an event, an error

An expectation takes the first message that its party has heard and not yet taken, and that is what was expected.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import httpx2

from dragoman.protocols.a2acp import flow
from dragoman.protocols.a2acp.flow import Flow, Step
from dragoman.protocols.a2acp.types import Agent

MESSAGES, ACK, TOKEN = "/a2acp/messages", "/a2acp/ack", "/auth/token"
TTL = 300
WAIT = 20
"""Seconds of a long poll."""
LONG = 60.0
"""Seconds for an answer: longer than the hub makes anybody wait."""

Expired = Callable[[Agent, str], str]
"""A token that is over, of whom and for whom, by whoever holds the hub's keys."""


class Broken(Exception):
    """The play cannot go on: the hub does not answer, or not as it must."""


class Played(NamedTuple):
    """What became of a step: the message that was sent or came, and where it was not what was expected."""

    step: Step
    message: Mapping[str, Any]
    differences: tuple[str, ...] = ()
    remark: str = ""
    seconds: float = 0.0

    @property
    def matched(self) -> bool:
        return not self.differences


class Member:
    """One party: its secret, its tokens, and what it heard."""

    def __init__(self, name: str, player: flow.Player, secret: str, door: httpx2.AsyncClient) -> None:
        self.name = name
        self.agent = player.agent
        self.heard: list[dict[str, Any]] = []
        self.came = asyncio.Event()
        self._grants = list(player.grants)
        self._door = door
        self._bearer = {"Authorization": f"Bearer {secret}"}
        self._tokens: dict[str, str] = {}

    async def token(self, audience: str) -> str:
        """A good token of its own, fetched once for each audience."""
        if audience not in self._tokens:
            body = {
                "agent_id": self.agent.agent_id,
                "target_agent_id": audience,
                "requested_capabilities": self._grants,
                "ttl": TTL,
            }
            answer = await self._ask("POST", TOKEN, json=body)
            if answer.status_code != 200:
                raise Broken(f"{self.agent.agent_id} got no token for {audience}: {_words(answer)}")
            self._tokens[audience] = answer.json()["token"]
        return self._tokens[audience]

    async def say(self, message: Mapping[str, Any], *, later: bool) -> bool:
        """Send it, and hear what the hub answers, if that is a message. False if it was refused."""
        # The message carries its own credential: the bearer is not needed here, and not sent.
        headers = {"Prefer": "respond-async"} if later else {}
        answer = await self._ask("POST", MESSAGES, json=message, headers=headers, bare=True)
        said = _json(answer)
        if isinstance(said, dict) and "message_type" in said:
            self._hear(said)
        elif answer.is_error:
            self._hear({"http_status": answer.status_code, "said": said})
        return not answer.is_error

    async def listen(self) -> None:
        """Take what the hub keeps for it, until cancelled."""
        while True:
            answer = await self._ask("GET", f"{MESSAGES}?wait={WAIT}&max=50")
            if answer.is_error:
                raise Broken(f"{self.agent.agent_id} may not take its messages: {_words(answer)}")
            held = answer.json()["messages"]
            if held:
                await self._ask("POST", ACK, json={"delivery_ids": [one["delivery_id"] for one in held]})
            for one in held:
                self._hear(one["message"])

    def _hear(self, message: dict[str, Any]) -> None:
        self.heard.append(message)
        self.came.set()

    async def _ask(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, bare: bool = False, **what: Any
    ) -> httpx2.Response:
        credential = {} if bare else self._bearer
        try:
            return await self._door.request(method, path, headers={**credential, **(headers or {})}, **what)
        except httpx2.HTTPError as error:
            raise Broken(f"the hub does not answer ({type(error).__name__})") from error


class Stage:
    """The parties together. `played` gets every step as soon as it is over."""

    def __init__(
        self,
        url: str,
        told: Flow,
        secrets: Mapping[str, str],
        *,
        verify: ssl.SSLContext | bool = True,
        expired: Expired | None = None,
        patience: float,
    ) -> None:
        limits = httpx2.Limits(max_connections=64)
        self._door = httpx2.AsyncClient(base_url=url, verify=verify, timeout=LONG, limits=limits, trust_env=False)
        self._cast = {name: Member(name, one, secrets[name], self._door) for name, one in told.parties.items()}
        self._steps = told.steps
        self._kept: dict[str, Any] = {}
        self._expired = expired
        self._patience = patience

    async def play(self, played: Callable[[Played], None]) -> bool:
        """Every step in its order, until one does not match. Whether all did. Raises `Broken`."""
        background: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(member.listen()) for member in self._cast.values()
        ]
        task_text = asyncio.ensure_future(self._tell(played, background))
        try:
            while not task_text.done():
                running: list[asyncio.Future[Any]] = [task_text, *background]
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {task_text}:
                    background.remove(task)
                    task.result()  # a poll ends only by what it raises; so may a request that nobody waits for
            return task_text.result()
        finally:
            for task in (task_text, *background):
                task.cancel()
            await asyncio.gather(task_text, *background, return_exceptions=True)
            await self._door.aclose()

    def unheard(self) -> list[tuple[str, dict[str, Any]]]:
        """What came and was in no step, by who heard it."""
        return [(name, message) for name, member in self._cast.items() for message in member.heard]

    async def _tell(self, played: Callable[[Played], None], background: list[asyncio.Future[Any]]) -> bool:
        for step in self._steps:
            began = time.monotonic()
            done = await (self._send(step, background) if step.send is not None else self._expect(step))
            played(done._replace(seconds=time.monotonic() - began))
            if not done.matched:
                return False
        return True

    async def _send(self, step: Step, background: list[asyncio.Future[Any]]) -> Played:
        member = self._cast[step.by]
        message = await self._filled(step)
        later = step.later or message.get("message_type") != "request"
        if not later and step.times == 1:
            background.append(asyncio.ensure_future(member.say(message, later=False)))
            return Played(step, message)
        if step.times == 1:
            await member.say(message, later=step.later)
            return Played(step, message)
        taken = refused = 0
        for _ in range(step.times):
            before = len(member.heard)
            if await member.say(await self._filled(step), later=step.later):
                taken += 1
            else:
                refused += 1
                if refused > 1:  # one refusal is the story; the rest say the same
                    del member.heard[before:]
        return Played(step, message, remark=f"{step.times} times: {taken} taken, {refused} refused")

    async def _expect(self, step: Step) -> Played:
        member = self._cast[step.by]
        closest: tuple[int, dict[str, Any], list[str]] | None = None
        looked = 0
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    member.came.clear()
                    for place in range(looked, len(member.heard)):
                        message = member.heard[place]
                        found = flow.differences(step.expect, message, self._kept)
                        if not found:
                            del member.heard[place]
                            return self._keep(step, message)
                        if closest is None or len(found) < closest[0]:
                            closest = len(found), message, found
                    looked = len(member.heard)
                    await member.came.wait()
        except TimeoutError:
            if closest is None:
                return Played(step, {}, (f"nothing came within {self._patience:g} s",))
            member.heard.remove(closest[1])
            return Played(step, closest[1], tuple(closest[2]))

    def _keep(self, step: Step, message: dict[str, Any]) -> Played:
        try:
            self._kept |= flow.taken(step, message)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            return Played(step, message, (f"what is to be kept is not there: {error}",))
        return Played(step, message)

    async def _filled(self, step: Step) -> dict[str, Any]:
        message = step.send or {}
        audience = message.get("target_agent", {}).get("agent_id", "")
        known: dict[str, Any] = {
            **self._kept,
            "id": str(uuid.uuid4()),
            "now": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        for name in flow.blanks(message):
            if name.startswith("token"):
                known[name] = await self._token(name, step.by, audience)
        filled: dict[str, Any] = flow.fill(message, known.__getitem__)
        return filled

    async def _token(self, name: str, by: str, audience: str) -> str:
        if name == "token:foreign":
            other = next(party for party in self._cast if party != by)
            return await self._cast[other].token(audience)
        if name == "token:expired":
            if self._expired is not None:
                return self._expired(self._cast[by].agent, audience)
            return _set_back(await self._cast[by].token(audience))
        return await self._cast[by].token(audience)


def _set_back(token: str) -> str:
    """The token as if it were of yesterday. Only its issuer could sign that: it is refused for either reason."""
    header, claims, signature = token.split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    told = {name: value - 86_400 if name in ("exp", "iat", "nbf") else value for name, value in told.items()}
    claims = base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")
    return f"{header}.{claims}.{signature}"


def _json(answer: httpx2.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text[:200]


def _words(answer: httpx2.Response) -> str:
    """Why the hub said no."""
    said = _json(answer)
    if isinstance(said, dict):
        error = (said.get("payload") or {}).get("error") or said.get("error") or said
        if isinstance(error, dict):
            said = error.get("message") or error.get("detail") or error.get("title") or error
    return f"{answer.status_code} {said}"
