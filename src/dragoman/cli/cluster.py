"""`dragoman cluster`: make the tables of a realm, show its nodes, and have its leader hand over.

`init` and `status --store` talk to PostgreSQL; the others to any node, which they find as every command finds a hub.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import Column, col

app = App(name="cluster", help="Several hubs over one PostgreSQL: init, status, step-down.")

Store = Annotated[
    str | None, Parameter(env_var="DRAGOMAN_STORE__URL", help="Where PostgreSQL is: postgresql://user@host/database.")
]
Realm = Annotated[str, Parameter(env_var="DRAGOMAN_CLUSTER__REALM", help="Which of the hubs in this database.")]

COLUMNS = (
    col("node", "name"),
    col("role"),
    col("http"),
    Column("seen", lambda node: printing.age(node.get("last_seen"))),
)


@app.command
def init(*, store: Store = None, realm: Realm = "default", output: Output = "table") -> None:
    """Make what the nodes of a realm need in PostgreSQL; does nothing where it is there."""
    from dragoman.app.settings.model import without_password
    from dragoman.core.ports import StoreFailed
    from dragoman.stores.postgres import lease

    url = store_url(store)
    try:
        asyncio.run(lease.init(url, realm))
    except StoreFailed as error:
        raise unusable(without_password(url), realm, error) from error
    except ValueError as error:
        raise CommandError(Exit.USAGE, str(error)) from error
    if printing.as_data({"realm": realm, "store": without_password(url)}, output):
        return
    printing.verdict(True, f"the realm {line(realm)} is there")
    printing.suggest(f"dragoman serve --store {line(without_password(url))} --realm {line(realm)} --node NAME")


@app.command
def status(
    *, store: Store = None, realm: Realm = "default", output: Output = "table", location: HubLocation = LOCAL
) -> int:
    """Show which node leads, and which stand by. With --store, PostgreSQL itself is asked, if no node answers."""
    found: dict[str, Any] = Hub.find(location).get("cluster") if store is None else _asked(store_url(store), realm)
    if not printing.as_data(found, output):
        printing.table(found["nodes"], COLUMNS)
        leader = found["leader"]
        says = f"{line(leader)} leads" if leader else "no node leads"
        printing.verdict(leader is not None, f"{says} the realm {line(found['realm'])}, epoch {found['epoch']}")
    return Exit.OK if found["leader"] else Exit.FAILED


@app.command
def step_down(
    *,
    wait: Annotated[float, Parameter(help="Seconds to wait until another node leads; 0: do not wait.")] = 30.0,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Have the leader hand over: it commits what it accepted, and another node leads."""
    hub = Hub.find(location)
    before = hub.get("cluster")
    there = next((node["http"] for node in before["nodes"] if node["name"] == before["leader"]), None)
    leader = hub if there in (None, hub.url) else hub.at(there)
    leader.post("cluster", "step-down")
    after = _next_leader(hub, before, wait)
    if not printing.as_data(after, output):
        handed_over = after["epoch"] > before["epoch"]
        says = f"{line(after['leader'])} leads, epoch {after['epoch']}" if handed_over else "no other node leads yet"
        printing.verdict(handed_over or not wait, f"{line(before['leader'])} stepped down; {says}")
    return Exit.OK if after["epoch"] > before["epoch"] or not wait else Exit.TIMEOUT


def _next_leader(hub: Hub, before: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The cluster as soon as a node leads in a later epoch. Meanwhile the node that is asked changes its part, too."""
    after, end = before, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            after = hub.get("cluster")
        except CommandError as failure:
            if failure.code not in (Exit.UNREACHABLE, Exit.FAILED, Exit.TIMEOUT):
                raise
        if after["epoch"] > before["epoch"] and after["leader"]:
            break
        time.sleep(0.1)
    return after


def _asked(url: str, realm: str) -> dict[str, Any]:
    import msgspec

    from dragoman.api.cluster import shown
    from dragoman.app.cluster.membership import found
    from dragoman.app.settings.model import without_password
    from dragoman.core.ports import StoreFailed
    from dragoman.stores.postgres.lease import LeaseTable

    async def ask() -> dict[str, Any]:
        table = LeaseTable(url, realm)
        try:
            return dict(msgspec.to_builtins(shown(await found(table))))
        finally:
            await table.close()

    try:
        return asyncio.run(ask())
    except StoreFailed as error:
        raise unusable(without_password(url), realm, error) from error
    except ValueError as error:
        raise CommandError(Exit.USAGE, str(error)) from error


def store_url(store: str | None) -> str:
    if store is None:
        raise CommandError(
            Exit.USAGE, "no PostgreSQL is named", next="name it: --store postgresql://user@host/database"
        )
    if not store.startswith(("postgresql://", "postgres://")):
        raise CommandError(Exit.USAGE, "--store must begin with postgresql://")
    return store


def unusable(place: str, realm: str, error: Exception) -> CommandError:
    """`place`: the database's address, without its password."""
    if "dragoman cluster init" in str(error):
        of_realm = "" if realm == "default" else f" --realm {realm}"
        return CommandError(
            Exit.NOT_FOUND,
            f"the realm {realm} does not exist in {line(place)}",
            next=f"dragoman cluster init --store {line(place)}{of_realm}",
        )
    return CommandError(
        Exit.UNREACHABLE,
        f"{line(place)}: {line(error)}",
        next="check the address, and that PostgreSQL runs and lets you in",
    )
