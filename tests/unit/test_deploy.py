"""The files of `deploy/`: each is valid for the program that reads it, and they agree with each other and with the hub.

`tests/e2e/test_image.py` builds and starts the image.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from kubernetes_validate import validate

from dragoman.app.settings import Settings, load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.33"
PORTS = {"http": 8420, "grpc": 50051, "nodes": 8421}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def composed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def of_kind(name: str, kind: str) -> dict[str, Any]:
    [found] = [one for one in documents(name) if one["kind"] == kind]
    return found


def loaded(environ: dict[str, str]) -> Settings:
    return load(flags={}, environ=environ, file=None).settings


@pytest.mark.parametrize("file", sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")))
def test_kubernetes_takes_every_manifest(file: str) -> None:
    for document in documents(file):
        validate(document, KUBERNETES, strict=True)


def test_compose_takes_the_file() -> None:
    plain = {name: part for name, part in composed().items() if not name.startswith("x-")}
    compose = PyCompose.from_json(json.dumps(plain))
    compose.validate()
    services = plain["services"]
    assert {"postgres", "rabbitmq", "init", "node-1", "node-2", "node-3"} == set(services)
    kept = {volume.partition(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert {name for name in kept if not name.startswith(".")} == set(plain["volumes"])


def test_containers_have_no_rights_that_they_do_not_need() -> None:
    pod = of_kind("dragoman.yaml", "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"], container["name"]
        assert not security["allowPrivilegeEscalation"], container["name"]
        assert security["capabilities"] == {"drop": ["ALL"]}
    services = composed()["services"]
    for node in ("node-1", "node-2", "node-3"):
        assert services[node]["read_only"]
        assert services[node]["cap_drop"] == ["ALL"]
        assert services[node]["user"] == "10001:10001"


def test_the_settings_of_the_manifests_are_settings_of_the_hub() -> None:
    configured = of_kind("dragoman.yaml", "ConfigMap")["data"]
    hub = of_kind("dragoman.yaml", "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    named = {one["name"]: one.get("value", "dragoman-0") for one in hub["env"]}
    settings = loaded({**configured, **named, "DRAGOMAN_STORE__URL": "postgresql://dragoman@postgres/dragoman"})
    assert settings.server.host == "0.0.0.0"
    assert settings.server.allow_plain
    assert settings.cluster.port == PORTS["nodes"]
    services = composed()["services"]
    for node in ("node-1", "node-2", "node-3"):
        environ = {**services[node]["environment"], "DRAGOMAN_STORE__URL": "postgresql://dragoman@postgres/dragoman"}
        assert loaded(environ).cluster.node == node


def test_the_ports_are_those_of_the_hub() -> None:
    hub = of_kind("dragoman.yaml", "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert {port["name"]: port["containerPort"] for port in hub["ports"]} == PORTS
    server = Settings().server
    assert (server.port, server.grpc_port) == (PORTS["http"], PORTS["grpc"])
    exposed = re.search(r"^EXPOSE (.+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert exposed is not None
    assert {int(port) for port in exposed[1].split()} == set(PORTS.values())


def test_the_image_copies_what_the_wheel_is_built_of() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    for path in " ".join(copied).split():
        assert (ROOT / path).exists(), path
    assert re.search(r"^USER 10001", text, re.MULTILINE)
    assert "HEALTHCHECK" in text


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze (Debian's systemd)")
    text = (DEPLOY / "systemd" / "dragoman.service").read_text()
    unit = tmp_path / "dragoman.service"
    unit.write_text(text.replace("/opt/dragoman/bin/dragoman", "/bin/true"))
    drop_in = tmp_path / "dragoman.service.d"
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "dragoman" in line]
    assert ours == [], done.stderr
    drop_in.mkdir()
    shutil.copy(DEPLOY / "systemd" / "dragoman-sandbox.conf", drop_in / "sandbox.conf")
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "dragoman" in line] == [], done.stderr


def settings_of(*places: dict[str, str], **secrets: str) -> Settings:
    """The settings that these environments make, with the secrets that docs/howto/deploy.md adds."""
    environ = {name: value for place in places for name, value in place.items()}
    return load(environ={**environ, **secrets}).settings


def test_everything_that_is_started_accepts_its_settings_with_a_broker_too() -> None:
    """Also what only makes the schema: it reads the same settings, and refuses those that contradict each other."""
    secrets = {
        "DRAGOMAN_STORE__URL": "postgresql://dragoman:secret@postgres/dragoman",
        "DRAGOMAN_MASTER_KEY": "0" * 64,
        "DRAGOMAN_AMQP__URL": "amqp://dragoman:secret@rabbitmq/",
    }
    services = composed()["services"]
    for name in ("init", "node-1", "node-2", "node-3"):
        assert settings_of(services[name]["environment"], **secrets).amqp.url
    config = {"dragoman": of_kind("dragoman.yaml", "ConfigMap")["data"]}
    for kind in ("Job", "StatefulSet"):
        [container] = of_kind("dragoman.yaml", kind)["spec"]["template"]["spec"]["containers"]
        given = [config[one["configMapRef"]["name"]] for one in container["envFrom"] if "configMapRef" in one]
        named = {one["name"]: one.get("value", "dragoman-0") for one in container.get("env", ())}
        assert settings_of(*given, named, **secrets).amqp.url
