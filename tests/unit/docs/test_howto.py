"""What the how-to pages tell people to type, typed beside a hub."""

from __future__ import annotations

from typing import Any

import pytest

FIRST = "docs/howto/first-agent.md"
OPERATE = "docs/howto/operate.md"
BACKUP = "docs/howto/backup.md"
TLS = "docs/howto/tls.md"

CONNECTED = 'until dragoman agent show deployer -o json | grep -q \'"status": *"idle"\'; do :; done'


@pytest.mark.long
def test_the_first_agent_is_added_started_called_and_asks(terminal: Any, block: Any) -> None:
    (terminal.directory / "deployer.py").write_text(terminal.local(block(FIRST, "python", "agent.run")))
    (terminal.directory / "caller.py").write_text(block(FIRST, "python", "SyncClient"))
    start = block(FIRST, "sh", "python deployer.py").strip() + " &"
    call = block(FIRST, "sh", "dry_run=true")
    asked = block(FIRST, "sh", "--detach").replace("--detach", "--detach >id").replace("<id>", "$(cat id)")
    wait = "until dragoman task show $(cat id) -o json | grep -q '\"waiting\"'; do :; done"
    find = 'dragoman ask ls -o jsonl | grep deployer | sed \'s/.*"id": *"\\([^"]*\\)".*/\\1/\' >question'
    answer = block(FIRST, "sh", "ask answer").replace("<id>", "$(cat question)")
    done = "until dragoman task ls --status completed | grep -q $(cat id); do :; done"
    script = (
        block(FIRST, "sh", "agent add deployer"),
        start,
        CONNECTED,
        call,
        "python caller.py",
        asked,
        wait,
        find,
        answer,
        done,
    )
    output = terminal.run("\n".join(script))
    assert '"changed": 3' in output
    assert "reading site.yml\n{'playbook': 'site.yml', 'changed': 3}" in output


def test_the_commands_about_audit_and_keys_work(terminal: Any, block: Any) -> None:
    audit = block(OPERATE, "sh", "audit checkpoint").replace("/elsewhere/audit-$(date +%F).json", "checkpoint.json")
    terminal.run(audit.replace("/elsewhere/audit-2026-11-01.json", "checkpoint.json"))
    terminal.run(block(OPERATE, "sh", "key rotate"))


def test_a_backup_is_made_beside_the_running_hub(terminal: Any, block: Any) -> None:
    terminal.run(block(BACKUP, "sh", "dragoman backup").replace("/backup/", "./"))
    assert list(terminal.directory.glob("hub-*.sqlite"))


def test_certificates_for_the_hub_and_a_client_are_made(terminal: Any, block: Any) -> None:
    server = block(TLS, "sh", "--host").splitlines()[0]
    terminal.run(f"{server} --dir tls\n{block(TLS, 'sh', '--client').strip()} --dir tls")
    assert {"ca.pem", "server.pem", "server.key"} <= {path.name for path in (terminal.directory / "tls").iterdir()}
