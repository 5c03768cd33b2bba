"""The hub for commands: finds it, sends requests, and turns refusals into exit codes.

`cli.http1` speaks HTTP: any other client would take longer to import than the request takes. The local hub's token is
only ever sent to the address beside it in `hub.json`; for any other hub it must be given in DRAGOMAN_TOKEN. Which
certificates a command trusts is in `security.trust`: that of the local hub by itself, which is in `hub.json` as well.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from dragoman.app.datadir import DataDir, DataDirError, alive
from dragoman.app.program import program
from dragoman.cli import errors, escaping
from dragoman.cli.arguments import HubLocation
from dragoman.cli.deadline import NEVER, Deadline
from dragoman.cli.errors import CommandError, Exit, NotAHub
from dragoman.cli.http1 import Answer, BadHttp, Connection

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from dragoman.app.datadir import Whereabouts

API = "/api/v1"
PAGE = 500
"""The largest page of a list."""
PATIENCE = 30.0
"""Seconds for an ordinary answer."""
LOOK_THERE = "see that a hub runs there, and that --hub / DRAGOMAN_URL names it as http://HOST:8420"
CHILDS = "stdio:"
"""The DRAGOMAN_URL of an agent that the hub runs: it has no address that a command could use."""
NO_GRPC = "only the hub of this data directory says where its gRPC port is"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Event(NamedTuple):
    """One event of a task's stream."""

    id: str
    kind: str
    data: Any


class Hub:
    def __init__(self, url: str, token: str | None, certificate: str = "", deadline: Deadline = NEVER) -> None:
        """`certificate`: of the hub on this machine, if this is that one; `deadline`: for all requests."""
        parts = urlsplit(url if "//" in url or url == CHILDS else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(Exit.USAGE, f"{escaping.line(url)!r} is not a hub's URL", next=_meant(parts))
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._secure = parts.scheme == "https"
        self._certificate = certificate
        self._deadline = deadline
        self._host = parts.hostname
        try:
            self._port = parts.port
        except ValueError:
            raise CommandError(Exit.USAGE, f"{escaping.line(url)!r} has an invalid port") from None
        self._base = parts.path.rstrip("/")
        self._headers = {"Accept": "application/json"}
        if token:
            if not token.isascii() or not token.isprintable():
                raise CommandError(
                    Exit.USAGE, "DRAGOMAN_TOKEN contains characters that a token cannot have", next="set it again"
                )
            self._headers["Authorization"] = f"Bearer {token}"

    @classmethod
    def find(cls, location: HubLocation, deadline: Deadline = NEVER) -> Hub:
        token = os.environ.get("DRAGOMAN_TOKEN")
        directory = DataDir(location.directory)
        try:
            here = directory.whereabouts()
        except DataDirError as error:
            if not location.hub:
                raise CommandError(Exit.NOT_ALLOWED, str(error)) from error
            here = None
        if location.hub:
            hub = cls(location.hub, token, deadline=deadline)
            local = here is not None and cls(here.http, None).url == hub.url
            if here is not None and local:
                return cls(location.hub, token or here.admin_token, here.certificate, deadline)
            return hub
        if here is None:
            raise CommandError(
                Exit.UNREACHABLE, f"no hub is running in {directory.path}", next=_start_it(location.data)
            )
        if not alive(here.pid):
            sentence = f"the hub of {directory.path} has ended (process {here.pid})"
            raise CommandError(Exit.UNREACHABLE, sentence, next=_start_it(location.data))
        return cls(here.http, token or here.admin_token, here.certificate, deadline)

    def under(self, token: str) -> Hub:
        """The same hub, asked by another principal."""
        return Hub(self.url, token, self._certificate, self._deadline)

    def at(self, url: str) -> Hub:
        """Another node of the same cluster, asked by the same principal."""
        return Hub(url, self._headers.get("Authorization", "").removeprefix("Bearer "), "", self._deadline)

    def until(self, deadline: Deadline) -> Hub:
        """The same hub, with another deadline."""
        token = self._headers.get("Authorization", "").removeprefix("Bearer ")
        return Hub(self.url, token, self._certificate, deadline)

    def get(self, *path: str, **query: Any) -> Any:
        return self.ask("GET", *path, query=query)

    def post(self, *path: str, body: Any = None, **query: Any) -> Any:
        return self.ask("POST", *path, body={} if body is None else body, query=query)

    def delete(self, *path: str) -> Any:
        return self.ask("DELETE", *path)

    def pages(self, what: str, *, most: int = 1_000_000, **query: Any) -> Iterator[Mapping[str, Any]]:
        """Everything in one of the hub's lists, page by page; at most `most` of them."""
        cursor = None
        for _ in range(most):
            page = self.get(what, limit=PAGE, cursor=cursor, **query)
            yield from page.get(what) or ()
            cursor = page.get("next")
            if not cursor:
                return

    def whereabouts(self, directory: Path) -> Whereabouts | None:
        """What `dev` left in this data directory, if that is about this hub."""
        here = DataDir(directory).whereabouts()
        return here if here is not None and Hub(here.http, None).url == self.url else None

    def agent_address(self, protocol: str, transport: str, directory: Path, *, fix: str) -> str:
        """What agents of this protocol connect to. Only the data directory says where the gRPC port is."""
        if protocol != "coven":
            return f"{protocol}+{transport}{self.url.removeprefix('http')}"
        here = self.whereabouts(directory)
        if here is None or not here.grpc:
            raise CommandError(Exit.USAGE, NO_GRPC, next=fix)
        return f"coven{'s' if here.grpc_tls else ''}://{here.grpc}"

    def ask(
        self,
        method: str,
        *path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
        patience: float = PATIENCE,
        headers: dict[str, str] | None = None,
        base: str = API,
    ) -> Any:
        """The decoded answer. Raises `CommandError` for everything that is not a success."""
        data = None if body is None else json.dumps(body).encode()
        sent = {**self._headers, **({} if data is None else {"Content-Type": "application/json"}), **(headers or {})}
        with self._request(method, _target(base, path, query), data, sent, patience) as answer:
            content = answer.read()
        if answer.status >= 300:
            raise _refusal(answer.status, content)
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError:
            raise NotAHub(self.url) from None

    def exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], *, patience: float = PATIENCE
    ) -> tuple[int, bytes]:
        """One request as it is given, and the answer as it comes, whatever it says. Raises `CommandError` if none
        comes."""
        with self._request(method, path, data, headers, patience) as answer:
            return answer.status, answer.read()

    def ahead(self, *, patience: float = PATIENCE) -> float | None:
        """By how many seconds the hub's clock is ahead of this machine's, by the date of an answer; None if that has
        none."""
        from email.utils import parsedate_to_datetime  # for the one command that compares

        with self._request("GET", "/livez", None, self._headers, patience) as answer:
            dated = answer.headers.get(b"date", b"").decode("latin-1")
        try:
            return parsedate_to_datetime(dated).timestamp() - time.time()
        except ValueError:
            return None

    def stream(self, *path: str, after: str | None = None, patience: float = PATIENCE) -> Iterator[Event]:
        """Events as they come, until the hub ends the stream. Raises `StreamSilent` after `patience` seconds of
        silence, or when the deadline is over, and `CommandError` if the connection breaks; the caller may come back
        with `after`."""
        headers = {**self._headers, "Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        with self._request("GET", _target(API, path, None), None, headers, patience) as answer:
            if answer.status >= 300:
                raise _refusal(answer.status, answer.read())
            fields: dict[str, str] = {}
            while True:
                try:
                    raw = answer.readline(16 * 1024 * 1024)
                except TimeoutError:
                    raise StreamSilent from None
                if not raw:
                    return
                text = raw.decode("utf-8", "replace").rstrip("\r\n")
                if text:
                    name, _, value = text.partition(":")
                    value = value.removeprefix(" ")
                    fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
                elif fields:
                    if "data" in fields:
                        yield Event(fields.get("id", ""), fields.get("event", "message"), _lenient(fields["data"]))
                    fields = {}

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context, or None where the hub has no TLS."""
        if not self._secure:
            return None
        from dragoman.security import trust  # it imports ssl, which most commands do without

        try:
            return trust.context(self._certificate)
        except trust.TrustProblem as problem:
            raise CommandError(Exit.USAGE, escaping.line(problem)) from problem

    @contextmanager
    def _request(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str], patience: float
    ) -> Iterator[Answer]:
        """The answer to one request, over a connection of its own. What goes wrong meanwhile is a `CommandError`."""
        port = self._port or (443 if self._secure else 80)
        connection = Connection(self._host, port, patience=patience, tls=self.tls(), deadline=self._deadline)
        try:
            yield connection.request(method, self._base + target, data, headers)
        except TimeoutError as error:
            raise self._slow(patience) from error
        except (OSError, BadHttp) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _slow(self, patience: float) -> CommandError:
        if self._deadline.over():
            patience = self._deadline.seconds or 0.0
        return CommandError(
            Exit.TIMEOUT, f"the hub at {self.url} did not answer within {patience:g} s", next="dragoman doctor"
        )

    def _lost(self, error: Exception) -> CommandError:
        if self._secure and (failure := self._mistrust(error)):
            return failure
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        fix = _start_it() if self._host in LOOPBACK else LOOK_THERE
        if not self._secure and isinstance(error, BadHttp | ConnectionResetError):  # another program answers there
            fix = f"if it speaks TLS: --hub https{self.url.removeprefix('http')}"
        return CommandError(Exit.UNREACHABLE, f"no hub answers at {self.url} ({escaping.line(why)})", next=fix)

    def _mistrust(self, error: Exception) -> CommandError | None:
        """The error if one side did not trust the other's certificate."""
        import ssl

        from dragoman.security import trust

        if isinstance(error, ssl.SSLCertVerificationError):
            sentence = f"the certificate of {self.url} is not trusted ({escaping.line(error.verify_message)})"
            fix = f"name the hub's CA in {trust.CA}, and the hub as its certificate does"
            return CommandError(Exit.UNREACHABLE, sentence, next=fix)
        # In TLS 1.3 a client learns of its refusal when it reads, and often only by the end of the connection.
        if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
            plain = f"http{self.url.removeprefix('https')}"
            return CommandError(
                Exit.UNREACHABLE, f"the server at {self.url} does not speak TLS", next=f"name it as --hub {plain}"
            )
        if isinstance(error, ssl.SSLError | ConnectionResetError):
            sentence = f"{self.url} ended the connection ({escaping.line(getattr(error, 'reason', None) or error)})"
            fix = f"if it asks for a certificate, name yours in {trust.CERTIFICATE} and {trust.KEY}"
            return CommandError(Exit.UNREACHABLE, sentence, next=fix)
        return None


class StreamSilent(Exception):
    """Nothing came for a while. The stream may be resumed."""


def _start_it(data: Path | None = None) -> str:
    """For where there is no hub; `data` if it was looked for in a directory that was named."""
    there = "" if data is None else f" --data {escaping.line(shlex.quote(str(data)))}"
    return f"start one with: {program()} dev{there}   (or name one with --hub URL and DRAGOMAN_TOKEN)"


def _meant(parts: SplitResult) -> str:
    """The URL of the hub that an agent's address is about; DRAGOMAN_URL is read by agents, too."""
    if parts.scheme.endswith(("+ws", "+http", "+wss", "+https")) and parts.hostname:
        scheme = "https" if parts.scheme.endswith("s") and not parts.scheme.endswith("+ws") else "http"
        return f"write it as {scheme}://{escaping.line(parts.netloc.rpartition('@')[2])}"
    return "write it as http://127.0.0.1:8420"


def _target(base: str, path: tuple[str, ...], query: dict[str, Any] | None) -> str:
    for part in path:
        if not part or "/" in part:  # it would be another address
            raise CommandError(
                Exit.NOT_FOUND, f"there is nothing with the id {escaping.line(part)!r}", next=errors.LISTS.get(path[0])
            )
    target = "/".join((base, *(quote(part, safe="") for part in path)))
    given = {key: value for key, value in (query or {}).items() if value is not None}
    return f"{target}?{urlencode(given)}" if given else target


def _lenient(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _refusal(status: int, content: bytes) -> CommandError:
    return errors.from_problem(status, _lenient(content.decode("utf-8", "replace")) if content else None)
