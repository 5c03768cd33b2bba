"""A callback URL is an order to this machine to open a connection: it leads to public addresses only."""

from __future__ import annotations

import pytest

from tests.support.hubproc import HubProcess

INWARD = [
    "http://127.0.0.1/hook",
    "http://localhost/hook",
    "http://127.1/",
    "http://0/",
    "http://0.0.0.0:8420/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
]
NO_URL = [
    "file:///etc/passwd",
    "ftp://example.com/",
    "gopher://example.com/",
    "http://",
    "//example.com/",
    "http://user:password@93.184.216.34/",
    "http://93.184.216.34:0/",
    "http://93.184.216.34/\r\nX-Injected: 1",
    "http://93.184.216.34\\@127.0.0.1/",
    "http://exa mple.com/",
    "javascript:alert(1)",
    "x" * 5000,
]


@pytest.mark.parametrize("url", [*INWARD, *NO_URL])
def test_a_callback_that_leads_inwards_or_nowhere_is_refused(hub: HubProcess, url: str) -> None:
    agent = hub.worker("caller", "caller")
    answer = agent.register(callback_url=url)
    assert (answer.status, answer.code) in ((422, 5003), (400, 5003)), answer
    assert "callback_url" in (answer.error["error_context"]["field_name"] or "")
    assert hub.admin.get("/api/v1/agents/caller").json["callback_url"] is None
