"""Where the hub is: addresses, tokens, the note of `dragoman dev`, and what importing costs."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dragoman import Agent, Client, HubUnreachable, Misconfigured, SyncClient
from dragoman.sdk.address import parse, resolve, resolve_agent
from dragoman.sdk.calling.calls import unreachable
from dragoman.sdk.links import LinkDown
from dragoman.sdk.network.connect_errors import not_made, sentence


@pytest.mark.parametrize(
    ("url", "protocol", "transport", "base"),
    [
        ("http://127.0.0.1:8420", "api", "http", "http://127.0.0.1:8420"),
        ("chiffon+http://h:1/", "chiffon", "http", "http://h:1"),
        ("chiffon+ws://h/hub", "chiffon", "ws", "http://h/hub"),
        ("chiffon+wss://[::1]:9", "chiffon", "ws", "https://[::1]:9"),
        ("coven://h", "coven", "grpc", "http://h"),
        ("covens://:t@h:1", "coven", "grpc", "https://h:1"),
        ("agentmsg+http://h:1", "agentmsg", "http", "http://h:1"),
        ("agentmsg+https://h:1", "agentmsg", "http", "https://h:1"),
        ("agentmsg+ws://h:1", "agentmsg", "ws", "http://h:1"),
        ("agentmsg+wss://h/hub", "agentmsg", "ws", "https://h/hub"),
        ("forge+ws://h:1", "forge", "ws", "http://h:1"),
        ("forge+wss://h/hub", "forge", "ws", "https://h/hub"),
        ("chiffon+amqp://h/fleet", "chiffon", "amqp", "amqp://h/fleet"),
        ("chiffon+amqps://u:p@h:5000", "chiffon", "amqp", "amqps://h:5000"),
        ("stdio:", "forge", "stdio", "stdio:"),
    ],
)
def test_an_address_says_what_is_spoken_and_where(url: str, protocol: str, transport: str, base: str) -> None:
    address = parse(url)
    assert (address.protocol, address.transport, address.base) == (protocol, transport, base)


def test_a_websocket_address_follows_from_the_base() -> None:
    assert parse("chiffon+wss://h:1").websocket("/x") == "wss://h:1/x"
    assert parse("chiffon+ws://h:1").websocket("/x") == "ws://h:1/x"


def test_the_userinfo_of_a_brokers_address_is_the_brokers_and_no_token() -> None:
    address = parse("chiffon+amqp://user:s3cret@h:1/v", "the-token")
    assert (address.token, address.broker) == ("the-token", "amqp://user:s3cret@h:1/v")
    assert parse("chiffon+amqp://user:s3cret@h").token is None
    assert "s3cret" not in f"{address!r} {address} {address.base} {address.shown} {address.headers}"
    assert address.shown == "chiffon+amqp://h:1/v"


def test_a_token_in_the_address_is_taken_out_and_never_shown() -> None:
    address = parse("chiffon+ws://:s3cret%2B@h:1")
    assert address.token == "s3cret+"
    assert address.headers == {"authorization": "Bearer s3cret+"}
    assert "s3cret" not in f"{address!r} {address} {address.base}"


@pytest.mark.parametrize(
    "url", ["ftp://h", "stdio://h", "localhost:8420", "chiffon+ws://", "http://h:99999", "secret@h"]
)
def test_an_address_we_cannot_speak_with_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def test_the_argument_beats_the_environment() -> None:
    environ = {"DRAGOMAN_URL": "chiffon+ws://env:1", "DRAGOMAN_TOKEN": "env"}
    assert resolve_agent("a", "chiffon+http://arg:1", "arg", environ).base == "http://arg:1"
    assert resolve_agent("a", "chiffon+http://:url@arg:1", None, environ).token == "url"
    assert resolve_agent("a", None, None, environ).token == "env"


def test_the_error_tells_an_agent_without_a_token_how_to_get_one() -> None:
    with pytest.raises(Misconfigured, match="dragoman agent add worker"):
        resolve_agent("worker", "chiffon+ws://h:1", None, {})
    with pytest.raises(Misconfigured, match="leave the address out"):  # it was meant to run elsewhere
        resolve_agent("worker", "chiffon+ws://h:1", None, {"DRAGOMAN_URL": "stdio:"})


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "no TLS is spoken there"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", "SSL_CERT_FILE"),
        ("Server disconnected without sending a response.", "https"),
        ("Trying to connect an http1.x server", "gRPC port"),
    ],
)
def test_a_client_at_the_wrong_endpoint_learns_the_right_one(said: str, what: str) -> None:
    down = not_made(parse("chiffon+ws://h:1", "t"), Exception(said))
    assert what in str(down)
    assert str(unreachable(down)) == f"no link to the hub: {down}."
    assert str(unreachable(not_made(parse("chiffon+ws://h:1", "t"), Exception("gone")))).endswith("running there?")


def test_an_error_keeps_the_name_of_its_code() -> None:
    address = parse("chiffon+wss://h:1", "t")
    untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")
    assert "CERTIFICATE_VERIFY_FAILED" in str(not_made(address, untrusted))
    assert "SSL_CERT_FILE" in str(not_made(address, untrusted))
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert str(not_made(address, unknown)).endswith(": Name or service not known")
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")
    assert str(not_made(address, refused)).endswith(": Connection refused")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("forge+wss://h:1", "did not receive a valid HTTP response"),
        ("covens://h:1", "failed to connect to all addresses; last error: UNAVAILABLE: Socket closed"),
        ("chiffon+https://h:1", "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"),
    ],
)
def test_a_tls_client_without_a_certificate_learns_how_to_show_one(url: str, said: str) -> None:
    down = not_made(parse(url, "t"), Exception(said))
    assert str(down).endswith("name yours in DRAGOMAN_CLIENT_CERTIFICATE and DRAGOMAN_CLIENT_KEY")
    assert "say so in the address" not in str(unreachable(LinkDown(sentence(down))))


def test_an_agent_that_the_hub_starts_needs_no_token_and_gives_none_away() -> None:
    environ = {"DRAGOMAN_URL": "stdio:", "DRAGOMAN_TOKEN": "env"}
    address = resolve_agent("worker", None, None, environ)
    assert (address.protocol, address.transport, address.token) == ("forge", "stdio", None)


def test_an_agent_with_a_plain_address_speaks_chiffon_over_a_websocket() -> None:
    address = resolve_agent("a", "https://h:1", "t", {})
    assert (address.protocol, address.transport, address.base) == ("chiffon", "ws", "https://h:1")


def test_a_client_finds_the_hub_of_this_directory(tmp_path: Path) -> None:
    note = tmp_path / "hub.json"
    note.write_text(json.dumps({"http": "http://127.0.0.1:9", "grpc": "", "admin_token": "adm", "pid": 1}))
    note.chmod(0o600)
    environ = {"DRAGOMAN_DATA": str(tmp_path)}
    assert resolve(None, None, environ).token == "adm"
    note.chmod(0o666)
    with pytest.raises(Misconfigured, match="not trusted"):
        resolve(None, None, environ)
    with pytest.raises(Misconfigured, match="dragoman dev"):
        resolve(None, None, {"DRAGOMAN_DATA": str(tmp_path / "none")})


def test_a_client_that_speaks_chiffon_must_say_who_it_is() -> None:
    with pytest.raises(Misconfigured, match="say who calls"):
        Client("chiffon+ws://h:1", token="t")


async def test_an_agent_that_does_nothing_is_refused() -> None:
    with pytest.raises(Misconfigured, match="does nothing"):
        await Agent("idle", token="t").serve("chiffon+ws://127.0.0.1:1")


def test_importing_dragoman_loads_next_to_nothing() -> None:
    code = (
        "import sys; import dragoman; assert 'Agent' in dir(dragoman); "
        "print([m for m in sys.modules if m.startswith(('dragoman.', 'msgspec', 'httpx', 'websockets', 'asyncio'))]);"
        "from dragoman import Agent, TaskFailed; Agent('a');"
        "print([m for m in sys.modules if m in ('httpx2', 'websockets', 'grpc', 'google.protobuf')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.splitlines() == ["[]", "[]"]


@pytest.mark.parametrize(
    "scheme",
    [
        "http",
        "chiffon+http",
        "chiffon+ws",
        "agentmsg+http",
        "agentmsg+ws",
        "a2acp+http",
        "a2acp+ws",
        "forge+ws",
        "coven",
    ],
)
async def test_an_unreachable_hub_is_named_at_once_with_its_address(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        place = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(HubUnreachable, match=rf"{re.escape(place)}: .*running") as caught:
            async with asyncio.timeout(60), Client(place, token="a" * 32, id="me") as hub:
                await hub.call("somebody", "work")
    assert "Errno" not in str(caught.value)


def test_a_synchronous_client_says_the_same_where_another_loop_runs() -> None:
    async def inside() -> None:
        with (
            pytest.raises(HubUnreachable, match=re.escape("chiffon+http://127.0.0.1:1: ")),
            SyncClient("chiffon+http://127.0.0.1:1", token="a" * 32, id="me"),
        ):
            pass

    asyncio.run(inside())


def test_a_program_that_cannot_run_shows_its_reason_and_not_our_inside() -> None:
    with pytest.raises(Misconfigured, match="not an address we can speak with") as caught:
        Agent("worker", token="t").run("gopher://localhost")
    assert len(caught.traceback) == 2  # the caller's line, and `run`


async def test_an_agent_is_not_run_where_a_loop_runs_already() -> None:
    with pytest.raises(Misconfigured, match=r"await agent\.serve"):
        Agent("worker", token="t").run("chiffon+ws://localhost:1")


def test_an_agent_in_a_thread_is_stopped_from_another() -> None:
    agent = Agent("worker", token="a" * 32)
    agent.on("work")(lambda: "done")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"chiffon+ws://127.0.0.1:{taken.getsockname()[1]}"
        running = threading.Thread(target=agent.run, args=(url,), daemon=True)
        running.start()
        for _ in range(1200):  # before it serves there is nothing to stop
            agent.stop()
            running.join(0.05)
            if not running.is_alive():
                break
    assert not running.is_alive()
