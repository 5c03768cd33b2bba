"""The servers that other tests build on."""

from __future__ import annotations

from pathlib import Path

from tests.support.postgres import Server, need_postgres, private_directory


def test_a_synchronous_standby_has_every_commit_when_its_primary_is_killed() -> None:
    need_postgres()
    base = private_directory("standby")
    primary = Server(Path(f"{base}-1"), durable=True)
    servers = [primary]
    try:
        primary.start()
        standby = primary.add_standby(Path(f"{base}-2"))
        servers.append(standby)
        primary.sql("CREATE TABLE a AS SELECT 7 AS b")
        primary.kill()
        standby.promote()
        assert standby.sql("INSERT INTO a VALUES (8); SELECT sum(b) FROM a") == "15"
    finally:
        for server in servers:
            server.remove()
