"""`dragoman contract`: what agents agreed on; `dragoman policy`: which domains may ask which."""

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

app = App(name="contract", help="Contracts between agents: ls, show, renew, end.")

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
            ("violated", _violated(contract)),
            ("takes", contract.get("input_schema")),
            ("gives", contract.get("output_schema")),
        ]
    )
    if standing == "active":
        printing.suggest(f"dragoman contract renew {line(id)}", f"dragoman contract end {line(id)}")
    else:
        source, target = (line((contract.get(side) or {}).get("agent")) for side in ("source", "target"))
        printing.suggest(f"to go on, {source} must make a new contract with {target}", "dragoman contract ls")


@app.command
def renew(
    id: ContractName,
    /,
    *,
    hours: Annotated[
        float | None, Parameter(help="How long it lasts from now; without this as long as a new contract.")
    ] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Let a contract end later, on the same terms. The hub informs both agents."""
    body = {} if hours is None else {"hours": hours}
    contract = lists.post(Hub.find(location), "contracts", id, "renew", body)
    done = f"the contract {line(contract.get('id'))} lasts until {line(contract.get('expires_at'))}"
    printing.done(contract, output, done, f"dragoman contract show {line(id)}")


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
    body = {} if reason is None else {"reason": reason}
    contract = lists.post(Hub.find(location), "contracts", id, "end", body)
    printing.done(contract, output, f"the contract {line(contract.get('id'))} has ended", "dragoman contract ls")


def _party(party: Any) -> str:
    return f"{party.get('agent')} {party.get('version')} of {party.get('domain')}" if isinstance(party, dict) else ""


def _violated(contract: Mapping[str, Any]) -> str | None:
    newest = contract.get("violations")
    if not newest:
        return None
    times = contract.get("violated", len(newest))
    return f"{times} times, last {newest[0]['at']} by {newest[0]['by']}: {newest[0]['reason']}"


def _sealed(contract: Mapping[str, Any]) -> str:
    if contract.get("encryption") != "aes256":
        return "no"
    return "end to end" if contract.get("mode") == "end-to-end" else "yes"


policies = App(name="policy", help="Which domains may ask which: allow, forbid, rm, ls.")

Source = Annotated[str, Parameter(name="FROM", help="The domain that asks; '*' is any.")]
Target = Annotated[str, Parameter(name="TO", help="The domain that is asked; '*' is any.")]
Intents = Annotated[
    list[str] | None, Parameter(name="--intent", negative=(), help="Only this intent; may be repeated.")
]

ANY = "*"
HOME = "default"
"""The domain of agents that have none."""

POLICY_COLUMNS = (
    col("from", "source"),
    col("to", "target"),
    Column("may", lambda entry: "yes" if entry.get("allow") else "no"),
    Column("intents", lambda entry: ", ".join(entry.get("intents") or ()) or "all"),
    Column("encrypted", lambda entry: "yes" if entry.get("encrypt") else "no"),
)


@policies.command
def allow(
    source: Source,
    target: Target,
    /,
    *,
    intent: Intents = None,
    encrypt: Annotated[bool, Parameter(negative=(), help="Only encrypted.")] = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Let agents of one domain ask those of another."""
    _change(source, target, {"allow": True, "intents": intent or [], "encrypt": encrypt}, output, location)


@policies.command
def forbid(
    source: Source,
    target: Target,
    /,
    *,
    intent: Intents = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Forbid it, whatever else allows it."""
    _change(source, target, {"allow": False, "intents": intent or []}, output, location)


def _change(source: str, target: str, terms: dict[str, Any], output: Output, location: HubLocation) -> None:
    hub = Hub.find(location)
    answer = hub.post("policies", "domains", body={"source": source, "target": target, **terms})
    if printing.as_data(answer, output):
        return
    may = "may" if terms["allow"] else "may not"
    what = f" for {line(', '.join(terms['intents']))}" if terms["intents"] else ""
    how = ", and only encrypted" if terms.get("encrypt") else ""
    printing.verdict(True, f"agents of {line(source)} {may} ask agents of {line(target)}{what}{how}")
    there = {agent.get("domain") or HOME for agent in hub.get("agents").get("agents") or ()}
    for domain in dict.fromkeys((source, target)):
        if domain not in (*there, ANY):
            printing.note(
                f"  no agent belongs to the domain {line(domain)} yet; known domains: {line(', '.join(sorted(there)))}"
            )
    printing.suggest("dragoman policy ls")


@policies.command
def rm(source: Source, target: Target, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Remove the policy about a pair of domains."""
    answer = Hub.find(location).ask("DELETE", "policies", "domains", query={"source": source, "target": target})
    printing.done(
        answer, output, f"the policy about {line(source)} asking {line(target)} is removed", "dragoman policy ls"
    )


@policies.command(name="ls")
def list_policies(*, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """List what is allowed and forbidden."""
    page = printing.Listing(Hub.find(location).get("policies", "domains"), "domains", POLICY_COLUMNS, output)
    first = "dragoman contract ls" if page.items else "dragoman policy allow FROM_DOMAIN TO_DOMAIN"
    page.end(True if page.items else None, f"{page.count('pair')} of domains", first)
