"""A schema is never a reason to fetch anything, not even one that nobody looked through before."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dragoman.wire.schema.library import DRAFT_07, DRAFT_2020, SchemaError, validator


class Tempting(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"type":"string"}')

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.parametrize("dialect", [DRAFT_07, DRAFT_2020])
def test_nothing_is_fetched_for_a_schema(dialect: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Tempting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(SchemaError):
            validator({"$ref": f"http://127.0.0.1:{server.server_port}/schema.json"}, dialect)
        server.shutdown()
    assert Tempting.asked == 0
