"""Things as the API tells of them, and a terminal to look at them on."""

from __future__ import annotations

from io import StringIO

ID = "0199f3a0-0000-7000-8000-000000000001"
AGENT = {
    "id": "deployer", "protocol": "chiffon", "protocol_version": "1.0", "status": "idle", "kind": "infra",
    "capabilities": ["run"], "current_tasks": [], "breaker": {"state": "closed", "failures": 0, "until": None},
    "last_seen": None, "untrusted": False,
}  # fmt: skip


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True
