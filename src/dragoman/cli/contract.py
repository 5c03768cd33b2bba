"""`dragoman contract`: what agents agreed on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from dragoman.cli import lists, printing
from dragoman.cli.arguments import LOCAL, Cursor, HubLocation, Limit, Output
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.lists import Since, cut
from dragoman.cli.printing import Column, col

app = App(name="contract", help="Contracts between agents: ls, show, end.")

ContractName = Annotated[str, Parameter(name="ID", help="The contract's id, or its collaboration's, or enough of it.")]

COLUMNS = (
    col("id"),
    Column("from", lambda contract: contract["source"].get("agent")),
    Column("to", lambda contract: contract["target"].get("agent")),
    col("intent"),
    col("standing"),
    Column("encrypted", lambda contract: _sealed(contract), spare=True),
    col("sandbox", rare=True),
    col("expires", "expires_at", spare=True),
)


@app.command
def ls(
    *,
    agent: Annotated[str | None, Parameter(help="Only those of this agent.")] = None,
    since: Since = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """List the contracts, newest first."""
    answer = Hub.find(location).get("contracts", agent=agent, limit=limit, cursor=cursor)
    answer = cut(answer, "contracts", "created_at", since)
    page = printing.Listing(answer, "contracts", COLUMNS, output, "dragoman contract ls", agent=agent, since=since)
    if page.items:
        commands = [f"dragoman contract show {line(page.items[0]['id'])}"]
    elif agent is not None:
        commands = ["dragoman contract ls", "dragoman agent ls"]
    else:
        commands = ["agents make them by a handshake (a2acp); across domains: dragoman policy allow FROM TO"]
    page.end(True if page.items else None, page.count("contract"), *commands)


@app.command
def show(id: ContractName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Show one contract: who, what, how long, on which terms."""
    contract = lists.found(Hub.find(location), "contracts", id)
    if printing.as_data(contract, output):
        return
    standing = contract.get("standing")
    state = printing.colored(line(standing), sys.stdout)
    print(f"{printing.mark(standing == 'active', sys.stdout)} contract {line(contract.get('id'))}  {state}")
    printing.facts(
        [
            ("collaboration", contract.get("collaboration_id")),
            ("from", _party(contract.get("source"))),
            ("to", _party(contract.get("target"))),
            ("intent", contract.get("intent")),
            ("timeout", f"{contract.get('timeout_seconds'):g} s"),
            ("encrypted", _sealed(contract)),
            ("personal", "yes" if contract.get("pii") else None),
            ("validated", None if contract.get("validated") else "no: only the two agents can read it"),
            ("requires", contract.get("required_capabilities")),
            ("sandbox", contract.get("sandbox")),
            ("key", contract.get("kid")),
            ("since", contract.get("created_at")),
            ("until", contract.get("expires_at")),
            ("ended by", contract.get("by")),
            ("why", contract.get("reason")),
            ("takes", contract.get("input_schema")),
            ("gives", contract.get("output_schema")),
        ]
    )
    if standing == "active":
        printing.suggest(f"dragoman contract end {line(id)}")
    else:
        source, target = (line((contract.get(side) or {}).get("agent")) for side in ("source", "target"))
        printing.suggest(f"to go on, {source} must make a new contract with {target}", "dragoman contract ls")


@app.command
def end(
    id: ContractName,
    /,
    *,
    reason: Annotated[str | None, Parameter(help="The reason that both agents get.")] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """End a contract. The hub informs both agents."""
    hub = Hub.find(location)
    body = {} if reason is None else {"reason": reason}
    contract = lists.meant(hub, "contracts", id, lambda whole: hub.post("contracts", whole, "end", body=body))
    printing.done(contract, output, f"the contract {line(contract.get('id'))} has ended", "dragoman contract ls")


def _party(party: Any) -> str:
    return f"{party.get('agent')} {party.get('version')} of {party.get('domain')}" if isinstance(party, dict) else ""


def _sealed(contract: Mapping[str, Any]) -> str:
    if contract.get("encryption") != "aes256":
        return "no"
    return "end to end" if contract.get("mode") == "end-to-end" else "yes"
