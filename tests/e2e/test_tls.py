"""TLS as others see it: curl, openssl, Python's ssl, our own command line and SDK, against a hub with certificates."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import trustme
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket

from dragoman import Agent, Client, HubUnreachable, Misconfigured, Task
from dragoman.sdk.address import parse
from dragoman.sdk.calling.api import ApiClient
from dragoman.sdk.runtime import SystemRuntime
from tests.support.cli import dragoman
from tests.support.hubproc import PATIENCE, HubProcess, running, until

CA = trustme.CA()
NAMES = ("localhost", "127.0.0.1")


class Place(NamedTuple):
    """A hub's certificates, where it looks for them."""

    ca: Path
    certificate: Path
    key: Path

    def put(self, issued: trustme.LeafCert) -> None:
        """The key first, as `dragoman cert` does: a hub that looks in between sees no pair, and waits."""
        self.replace(self.key, issued.private_key_pem.bytes())
        self.replace(self.certificate, b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def replace(self, path: Path, data: bytes) -> None:
        """Nobody sees half of it."""
        draft = path.with_suffix(".draft")
        draft.touch(0o600)
        draft.write_bytes(data)
        draft.replace(path)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "DRAGOMAN_TLS__CERTIFICATE": str(self.certificate),
            "DRAGOMAN_TLS__KEY": str(self.key),
            "DRAGOMAN_TLS__RENEW_SECONDS": "0.1",
        }


def place(home: Path) -> Place:
    made = Place(home / "ca.pem", home / "server.pem", home / "server.key")
    CA.cert_pem.write_to_path(str(made.ca))
    made.put(CA.issue_cert(*NAMES))
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return place(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, files: Place) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), **files.settings, DRAGOMAN_SERVER__HEADER_SECONDS="5") as hub:
        yield hub
        assert "Traceback" not in hub.log.read_text()
        assert hub.stop() == 0


def trusting(ca: trustme.CA = CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    return context


def grpc_port(hub: HubProcess) -> int:
    return int(hub.ready["grpc"].rpartition(":")[2])


def http_port(hub: HubProcess) -> int:
    return urlsplit(hub.url).port or 0


def shaken(port: int, context: ssl.SSLContext) -> tuple[str, bytes]:
    """The version spoken and the certificate shown. A refusal is an OSError, when it comes behind the handshake too."""
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        if not link.recv(1):
            raise ConnectionResetError
        return str(link.version()), link.getpeercert(binary_form=True) or b""


def curl(hub: HubProcess, *options: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["curl", "-sS", "-m", "60", *options, f"{hub.url}/livez"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# -- who gets in


def test_curl_trusts_the_hub_by_its_ca(hub: HubProcess, files: Place) -> None:
    assert hub.url.startswith("https://")
    assert hub.ready["grpc_tls"] is True
    said = curl(hub, "--cacert", str(files.ca))
    assert (said.returncode, json.loads(said.stdout)["status"]) == (0, "ok"), said.stderr


def test_another_ca_is_not_believed(hub: HubProcess, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    assert curl(hub, "--cacert", str(tmp_path / "ca.pem")).returncode == 60
    for port in (http_port(hub), grpc_port(hub)):
        with pytest.raises(ssl.SSLCertVerificationError):
            shaken(port, trusting(trustme.CA()))


def test_tls_1_2_is_refused_on_every_port(hub: HubProcess, files: Place) -> None:
    assert curl(hub, "--cacert", str(files.ca), "--tls-max", "1.2").returncode == 35
    for port in (http_port(hub), grpc_port(hub)):
        assert shaken(port, trusting())[0] == "TLSv1.3"
        old = trusting()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        # Over HTTP it is told why; gRPC keeps that for itself.
        with pytest.raises(ssl.SSLError if port == http_port(hub) else (ssl.SSLError, ConnectionError)):
            shaken(port, old)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("old", ["-tls1_2", "-tls1_1"])
def test_openssl_agrees(hub: HubProcess, files: Place, old: str) -> None:
    for port in (http_port(hub), grpc_port(hub)):
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-alpn", "h2", "-CAfile", str(files.ca)]
        shake = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": PATIENCE}
        new: Any = subprocess.run([*command, "-tls1_3"], **shake)  # type: ignore[call-overload]
        assert b"Verify return code: 0 (ok)" in new.stdout
        refused: Any = subprocess.run([*command, old], **shake)  # type: ignore[call-overload]
        assert refused.returncode != 0
        assert b"Cipher is (NONE)" in refused.stdout


def test_plain_http_gets_nowhere_on_a_port_with_tls(hub: HubProcess) -> None:
    for port in (http_port(hub), grpc_port(hub)):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            heard = b""
            try:
                while piece := plain.recv(4096):
                    heard += piece
            except ConnectionResetError:
                pass
            assert b"200" not in heard


def test_a_client_that_never_finishes_a_handshake_is_cut_off(hub: HubProcess) -> None:
    with socket.create_connection(("127.0.0.1", http_port(hub)), timeout=PATIENCE) as silent:
        silent.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello, and no more
        try:
            assert silent.recv(1) == b""
        except ConnectionResetError:
            pass


# -- our own side


def test_commands_beside_the_hub_know_it_and_others_need_its_ca(hub: HubProcess, files: Place, tmp_path: Path) -> None:
    said = dragoman("agent", "ls", hub=hub)
    assert said.code == 0, said.err
    away = {"DRAGOMAN_DATA": str(tmp_path), "DRAGOMAN_TOKEN": hub.ready["admin_token"]}
    there = ("agent", "ls", "--hub", hub.url)
    assert dragoman(*there, SSL_CERT_FILE=str(files.ca), **away).code == 0
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    wrong = dragoman(*there, SSL_CERT_FILE=str(tmp_path / "other.pem"), **away)
    assert (wrong.code, "is not trusted" in wrong.err, "SSL_CERT_FILE" in wrong.err) == (5, True, True)
    missing = dragoman(*there, SSL_CERT_FILE=str(tmp_path / "none.pem"), **away)
    assert (missing.code, "Name a file of CAs in PEM" in missing.err) == (2, True)


def take_and_cancel(hub: HubProcess, agent: str, via: str, **environment: str) -> None:
    """A call to an agent that is not there: the hub takes the work, a person cancels it, the command ends with 1."""

    def taken() -> str | None:
        told = dragoman("task", "ls", "--type", f"x-{via}", "-o", "json", hub=hub, **environment).json["tasks"]
        return told[0]["id"] if told else None

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(dragoman, "call", agent, f"x-{via}", "--via", via, "--data", str(hub.data), **environment)
        task = until(lambda: call.done() or taken(), "the task is there")
        assert isinstance(task, str), call.result()
        assert dragoman("task", "cancel", task, hub=hub, **environment).code == 0
        assert call.result(PATIENCE).code == 1, call.result()


@pytest.mark.parametrize("via", ["api", "chiffon", "forge", "coven", "agentmsg"])
def test_every_protocol_is_open_to_a_command_beside_the_hub(hub: HubProcess, tmp_path: Path, via: str) -> None:
    """By `--data` alone: whatever SSL_CERT_FILE says, the hub beside us is known by its own certificate."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    added = dragoman("agent", "add", f"beside-{via}", "--protocol", "chiffon", hub=hub)
    assert added.code == 0, added.err
    take_and_cancel(hub, f"beside-{via}", via, SSL_CERT_FILE=str(tmp_path / "other.pem"))


def test_the_clauses_of_every_protocol_are_tried_over_tls(hub: HubProcess) -> None:
    said = dragoman("conformance", "hub", "-o", "json", "--data", str(hub.data))
    assert said.out, said.err
    tried = {one["protocol"]: one["good"] for one in json.loads(said.out)["checks"] if one["good"] is not True}
    assert (said.code, tried) == (0, {}), said.out


def test_what_the_ca_signed_for_others_is_not_taken_for_the_hub_beside_us(tmp_path: Path, hub: HubProcess) -> None:
    """A note in a data directory names one certificate, and no other of the same CA."""
    note = json.loads((hub.data / "hub.json").read_text())
    note["certificate"] = CA.issue_cert(*NAMES).cert_chain_pems[0].bytes().decode() + CA.cert_pem.bytes().decode()
    tmp_path.chmod(0o700)
    (tmp_path / "hub.json").touch(0o600)
    (tmp_path / "hub.json").write_text(json.dumps(note))
    said = dragoman("agent", "ls", DRAGOMAN_DATA=str(tmp_path))
    assert (said.code, "is not trusted" in said.err) == (5, True)


SPOKEN = ("chiffon+https", "chiffon+wss", "agentmsg+https", "agentmsg+wss", "forge+wss", "covens")


def address(hub: HubProcess, scheme: str) -> str:
    return f"covens://{hub.ready['grpc']}" if scheme == "covens" else hub.url.replace("https", scheme, 1)


@pytest.mark.parametrize("scheme", SPOKEN)
async def test_agents_and_clients_of_every_protocol_come_by_tls(
    hub: HubProcess, files: Place, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    protocol, name = scheme.partition("+")[0].removesuffix("s"), scheme.replace("+", "-")
    worker, caller = f"{name}-worker", f"{name}-caller"
    tokens = {
        id: dragoman("agent", "add", id, "--protocol", protocol, "-o", "json", hub=hub).json["token"]
        for id in (worker, caller)
    }
    monkeypatch.setenv("DRAGOMAN_TOKEN", tokens[worker])
    agent = Agent(worker)

    @agent.on("greet")
    async def greet(task: Task, who: str) -> dict[str, str]:
        return {"said": f"hello {who}"}

    async with asyncio.timeout(2 * PATIENCE):
        serving = asyncio.ensure_future(agent.serve(address(hub, scheme)))
        try:
            async with Client(address(hub, scheme), token=tokens[caller], id=caller) as client:
                assert "hello you" in str(await client.call(worker, "greet", who="you"))
            async with Client(hub.url, token=hub.ready["admin_token"]) as people:
                assert "hello me" in str(await people.call(worker, "greet", who="me"))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def test_an_sdk_without_the_ca_does_not_speak_to_the_hub(
    hub: HubProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    impatient = ApiClient(parse(hub.url, "t"), SystemRuntime(), retry_for=0.2)
    async with asyncio.timeout(2 * PATIENCE):
        with pytest.raises(HubUnreachable):
            await impatient.submit("a", "b", {}, {})
        await impatient.close()
    async with asyncio.timeout(2 * PATIENCE):
        with pytest.raises(HubUnreachable) as unproved:
            async with Client(address(hub, "covens"), token="t", id="x") as client:
                await client.submit("a", "b", {})
    for scheme in ("chiffon+wss", "chiffon+https", "agentmsg+wss", "forge+wss", "a2acp+wss"):
        async with asyncio.timeout(2 * PATIENCE):
            with pytest.raises(
                HubUnreachable, match=r"CERTIFICATE_VERIFY_FAILED.*; name the hub's CA in SSL_CERT_FILE"
            ):
                async with Client(address(hub, scheme), token="t", id="x"):
                    pass
    said = str(unproved.value)
    assert said.startswith(f"no answer from {address(hub, 'covens')}: failed to connect: CERTIFICATE_VERIFY_FAILED: ")
    assert said.endswith("; name the hub's CA in SSL_CERT_FILE, and the hub as its certificate does.")
    assert "\n" not in said
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(Misconfigured, match=r"none\.pem"):
        async with Client(address(hub, "covens"), token="t", id="x") as client:
            await client.submit("a", "b", {})


CALL = """
import asyncio, sys
from dragoman import Client, HubUnreachable

async def call():
    async with Client(sys.argv[1], token="t", id="x") as client:
        await client.submit("a", "b", {})

try:
    asyncio.run(call())
except HubUnreachable as error:
    print(error)
"""


def test_grpc_itself_writes_nothing_when_the_ca_is_wrong(hub: HubProcess, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    environ["SSL_CERT_FILE"] = str(tmp_path / "other.pem")
    ran = subprocess.run(
        [sys.executable, "-c", CALL, address(hub, "covens")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (ran.stderr, ran.returncode, ran.stdout.count("\n")) == ("", 0, 1)


# -- client certificates


def test_a_client_certificate_is_demanded_where_it_is_required(tmp_path: Path) -> None:
    files = place(tmp_path)
    assert dragoman("cert", "--dir", str(tmp_path / "mine"), "--client", "ops").code == 0
    mine = tmp_path / "mine"
    settings = files.settings | {
        "DRAGOMAN_TLS__CLIENT_CA": str(mine / "ca.pem"),
        "DRAGOMAN_TLS__CLIENTS": "required",
    }
    known, stranger = trusting(), trusting()
    known.load_cert_chain(mine / "ops.pem", mine / "ops.key")
    trustme.CA().issue_cert("ops").configure_cert(stranger)
    with running(tmp_path / "hub", **settings) as hub:
        for port in (http_port(hub), grpc_port(hub)):
            assert shaken(port, known)[0] == "TLSv1.3"
            for nobody in (trusting(), stranger):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    shaken(port, nobody)
        without = dragoman("agent", "ls", hub=hub)
        assert (without.code, "DRAGOMAN_CLIENT_CERTIFICATE" in without.err) == (5, True), without.err
        shown = {
            "DRAGOMAN_CLIENT_CERTIFICATE": str(mine / "ops.pem"),
            "DRAGOMAN_CLIENT_KEY": str(mine / "ops.key"),
        }
        said = dragoman("agent", "ls", hub=hub, **shown)
        assert said.code == 0, said.err
        for via in ("coven", "agentmsg"):
            assert dragoman("agent", "add", via, "--protocol", via, hub=hub, **shown).code == 0
            take_and_cancel(hub, via, via, **shown)
        half = dragoman("agent", "ls", hub=hub, DRAGOMAN_CLIENT_KEY="k")
        assert (half.code, "belong together" in half.err) == (2, True)
        assert hub.stop() == 0


# -- renewal


def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_go_on(tmp_path: Path) -> None:
    files = place(tmp_path)
    with running(tmp_path / "hub", **files.settings) as hub:
        ports = (http_port(hub), grpc_port(hub))
        before = [shaken(port, trusting())[1] for port in ports]
        kept = http.client.HTTPSConnection("localhost", ports[0], timeout=PATIENCE, context=trusting())
        kept.connect()
        token = dragoman("agent", "add", "w", "--protocol", "agentmsg", "-o", "json", hub=hub).json["token"]

        async def linked() -> ClientConnection:
            headers = {"Authorization": f"Bearer {token}"}
            link = f"wss://localhost:{ports[0]}/agentmsg/ws"
            return await websocket(link, ssl=trusting(), additional_headers=headers, open_timeout=PATIENCE)

        async def answered(link: ClientConnection) -> float:
            return await asyncio.wait_for(await link.ping(), PATIENCE)

        with asyncio.Runner() as loop:  # and no second thread that reads: Python's TLS does not bear that
            open_link = loop.run(linked())
            files.put(CA.issue_cert(*NAMES))
            after = [
                until(lambda port=port, old=old: (new := shaken(port, trusting())[1]) != old and new, "renewed")
                for port, old in zip(ports, before, strict=True)
            ]
            assert after[0] == after[1]
            kept.request("GET", "/livez")
            assert kept.getresponse().read() != b""
            assert loop.run(answered(open_link)) > 0
            loop.run(open_link.close())
        kept.close()
        said = dragoman("agent", "ls", hub=hub)  # hub.json tells of the new one
        assert said.code == 0, said.err

        # One that will not do changes nothing, and is complained of once.
        files.replace(files.certificate, CA.issue_cert(*NAMES).cert_chain_pems[0].bytes())
        until(lambda: "a renewed certificate is not used" in hub.log.read_text())
        assert [shaken(port, trusting())[1] for port in ports] == after
        files.put(CA.issue_cert(*NAMES))
        until(lambda: shaken(ports[0], trusting())[1] != after[0])
        assert hub.log.read_text().count("a renewed certificate is not used") == 1
        assert hub.stop() == 0


def test_coven_may_have_a_certificate_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "grpc").mkdir()
    files, other = place(tmp_path), place(tmp_path / "grpc")
    own = {"DRAGOMAN_COVEN__TLS_CERTIFICATE": str(other.certificate), "DRAGOMAN_COVEN__TLS_KEY": str(other.key)}
    with running(tmp_path / "hub", **files.settings, **own) as hub:
        assert shaken(http_port(hub), trusting())[1] != shaken(grpc_port(hub), trusting())[1]
    with running(tmp_path / "plain", **own) as hub:
        assert (hub.url.startswith("http://"), hub.ready["grpc_tls"]) == (True, True)
        assert shaken(grpc_port(hub), trusting())[0] == "TLSv1.3"


def test_what_the_cert_command_says_next_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = dragoman("cert")
    assert said.code == 0, said.err
    command = said.err.rpartition("next: dragoman ")[2].split()
    assert command[:2] == ["dev", "--certificate"]
    hub = HubProcess(
        tmp_path, data=tmp_path / ".dragoman", DRAGOMAN_TLS__CERTIFICATE=command[2], DRAGOMAN_TLS__KEY=command[4]
    )
    try:
        hub.start()
        said = dragoman("doctor", hub=hub)
        assert (said.code, "✓ hub: answers at https://" in said.out) == (0, True), said.out
        assert "✓ tls: " in said.out
    finally:
        hub.kill()


# -- what does not start


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_plain_ports_that_others_can_reach_are_refused(tmp_path: Path, host: str) -> None:
    said = dragoman("dev", "--no-demo", "--host", host, "--port", "0", "--data", str(tmp_path / "data"))
    assert said.code == 2
    assert "would be spoken without TLS" in said.err
    assert "dragoman cert" in said.err
    assert "allow_plain" in said.err
    assert not (tmp_path / "data").exists()


def test_a_key_that_others_can_read_is_not_served(tmp_path: Path) -> None:
    files = place(tmp_path)
    files.key.chmod(0o644)
    said = dragoman(
        "dev", "--no-demo", "--port", "0", "--data", str(tmp_path / "data"),
        "--certificate", str(files.certificate), "--key", str(files.key),
    )  # fmt: skip
    assert (said.code, f"chmod 600 {files.key}" in said.err) == (4, True)


def test_the_settings_show_paths_and_nothing_of_what_lies_there(tmp_path: Path) -> None:
    files = place(tmp_path)
    said = dragoman("config", "show", "--origin", "-o", "json", **files.settings)
    assert said.json["tls.key"] == {"value": str(files.key), "origin": "environment DRAGOMAN_TLS__KEY"}
    assert "PRIVATE" not in said.out
