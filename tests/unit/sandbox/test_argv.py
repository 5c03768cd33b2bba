"""What is built from a `Sandbox`, as values: nothing is started here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.sandbox import launcher
from dragoman.sandbox.hyperlight import Hyperlight
from dragoman.sandbox.model import MIB, Level, Limits, Sandbox, Unavailable
from dragoman.sandbox.processes import Bubblewrap, Landlock
from dragoman.sandbox.program_files import files_needed_by
from dragoman.sandbox.wasm import Wasm


class Known(Bubblewrap):
    """Without asking the program."""

    def __init__(self, version: str = "0.8.0") -> None:
        super().__init__("/usr/bin/bwrap")
        self._version = version


def plan_of(argv: tuple[str, ...], step: str) -> dict[str, Any]:
    plan: dict[str, Any] = launcher.read(argv[argv.index("--") - 1])[step]
    return plan


def options(sandbox: Sandbox, version: str = "0.8.0") -> list[str]:
    found: list[str] = plan_of(Known(version).argv(sandbox, ("/bin/true",)), "outside")["bwrap"]
    return found


def places(found: list[str], option: str) -> list[str]:
    return [found[at + 1] for at, word in enumerate(found) if word == option]


def test_everything_is_unshared_and_dropped() -> None:
    found = options(Sandbox())
    for word in ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"):
        assert word in found
    assert places(found, "--cap-drop") == ["ALL"]
    assert "--share-net" not in found


def test_an_old_bubblewrap_gets_no_option_that_it_does_not_know() -> None:
    assert "--disable-userns" not in options(Sandbox(), version="0.4.1")


def test_only_what_is_allowed_is_bound_and_only_that_to_write() -> None:
    found = options(Sandbox(read=("/srv/in",), write=("/srv/out",)))
    assert places(found, "--ro-bind") == [launcher.file(), "/srv/in"]
    assert places(found, "--bind") == ["/srv/out"]
    assert places(found, "--tmpfs") == ["/tmp", "/dev/shm"]
    assert places(found, "--remount-ro") == ["/proc", "/"]


def test_the_hubs_data_is_hidden_and_what_is_allowed_within_it_is_not() -> None:
    sandbox = Sandbox(read=("/srv",), write=("/srv/hub/homes/a",), hidden=("/srv/hub", "/var/elsewhere"))
    found = options(sandbox)
    order = [found.index(place) for place in ("/srv", "/srv/hub", "/srv/hub/homes/a")]
    assert order == sorted(order)
    assert places(found, "--tmpfs")[-1] == "/srv/hub"
    assert places(found, "--remount-ro") == ["/srv/hub", "/proc", "/"]


def test_memory_that_files_take_is_bounded() -> None:
    found = options(Sandbox(limits=Limits(scratch_mb=7)))
    assert places(found, "--size") == [str(7 * MIB)] * 2


def test_no_value_of_a_variable_stands_in_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "canary-value")
    sandbox = Sandbox(variables=("KEY",))
    for backend in (Known(), Landlock(), Wasm()):
        argv = backend.argv(sandbox, ("/bin/true",))
        assert "canary-value" not in " ".join(argv)
    assert "canary-value" not in str(plan_of(Known().argv(sandbox, ("/bin/true",)), "outside"))


def test_a_network_is_never_shared_even_with_allowed_hosts() -> None:
    sandbox = Sandbox(hosts=("example.org",))
    assert "--share-net" not in options(sandbox)
    assert plan_of(Known().argv(sandbox, ("/bin/true",)), "outside")["egress"]["hosts"] == ["example.org"]


@pytest.mark.parametrize(
    ("backend", "sandbox"),
    [
        (Landlock(), Sandbox(hosts=("example.org",))),
        (Landlock(), Sandbox(read=("/srv",), hidden=("/srv/hub",))),
        (Wasm(), Sandbox(hosts=("example.org",))),
        (Wasm(), Sandbox(read=("/usr",), hidden=("/usr/bin",))),
        (Wasm(), Sandbox(read=("/no/such/directory",))),
        (Hyperlight(), Sandbox(read=("/srv",))),
        (Hyperlight(), Sandbox(hosts=("example.org",))),
    ],
)
def test_what_a_level_cannot_enforce_it_does_not_build(backend: Landlock | Wasm | Hyperlight, sandbox: Sandbox) -> None:
    with pytest.raises(Unavailable) as caught:
        backend.argv(sandbox, ("/bin/true",))
    assert caught.value.level is backend.level
    assert caught.value.remedy


def test_without_bubblewrap_the_check_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    report = Bubblewrap().self_test()
    assert (report.level, report.available, report.passed) == (Level.BUBBLEWRAP, False, False)
    assert report.why_not == "bwrap is not installed"
    assert report.remedy is not None
    assert "bubblewrap" in report.remedy
    with pytest.raises(Unavailable):
        Bubblewrap().argv(Sandbox(), ("/bin/true",))


# -- what a command needs


def test_a_program_of_the_system_needs_nothing_else() -> None:
    assert files_needed_by("/bin/sh") == ()


def test_a_virtual_environment_needs_itself_and_its_interpreter(tmp_path: Path) -> None:
    base, venv = tmp_path / "base", tmp_path / "venv"
    for prefix in (base, venv):
        (prefix / "bin").mkdir(parents=True)
        (prefix / "lib").mkdir()
        (prefix / "secrets").mkdir()
    (base / "bin/python3").write_bytes(b"\x7fELF")
    os.symlink(base / "bin/python3", venv / "bin/python")
    (venv / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    assert set(files_needed_by(str(venv / "bin/python"))) == {
        str(venv / "bin/python"),
        str(venv / "lib"),
        str(venv / "pyvenv.cfg"),
        str(base / "bin/python3"),
        str(base / "lib"),
    }


def test_a_script_needs_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "tool/bin").mkdir(parents=True)
    interpreter = tmp_path / "tool/bin/interpreter"
    interpreter.write_bytes(b"\x7fELF")
    script = tmp_path / "script"
    script.write_text(f"#!{interpreter} -u\n")
    assert files_needed_by(str(script)) == (str(script), str(interpreter))


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    os.symlink(tmp_path / "b", tmp_path / "a")
    os.symlink(tmp_path / "a", tmp_path / "b")
    assert files_needed_by(str(tmp_path / "a")) == ()


# -- the launcher's own pieces


def test_only_named_variables_pass_and_the_mark_of_the_brood() -> None:
    given = {"PATH": "/bin", "TOKEN": "x", "DRAGOMAN_DESCENDANT": "m:1", "DRAGOMAN_TOKEN": "y"}
    assert launcher.only_these(["PATH"], given) == {"PATH": "/bin", "DRAGOMAN_DESCENDANT": "m:1"}
