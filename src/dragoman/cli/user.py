"""`dragoman user`: the people who may use the dashboard and the management API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import Column, col

app = App(name="user", help="The people who may use the dashboard and the API: add, ls, login, role, token, rm.")

Name = Annotated[str, Parameter(name="NAME", help="The person's name, as the audit record shows it.")]
Role = Annotated[
    Literal["viewer", "operator", "admin"],
    Parameter(help="A viewer reads, an operator also acts on work, an admin also on agents, people and keys."),
]

COLUMNS = (
    col("name"),
    col("role"),
    Column("token", lambda user: "yes" if user.get("has_token") else "no"),
    Column("last login", lambda user: printing.age(user.get("last_login")) if user.get("last_login") else "never"),
)


@app.command
def add(name: Name, /, *, role: Role = "viewer", output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Add a person, and make a link that logs them in once."""
    hub = Hub.find(location)
    _link(hub, hub.post("users", body={"name": name, "role": role}), output, f"{line(name)} is {role}")


@app.command
def login(name: Name, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Make a link that logs a person in once."""
    hub = Hub.find(location)
    _link(hub, hub.post("users", name, "login"), output, f"a link for {line(name)}")


def _link(hub: Hub, answer: dict[str, Any], output: Output, verdict: str) -> None:
    answer = {**answer, "login": f"{hub.url}{answer['login']}"}
    if printing.as_data(answer, output):
        return
    printing.verdict(True, verdict)
    print(line(answer["login"]))
    printing.note(f"  it counts once, until {line(answer['expires_at'])}")
    printing.suggest("dragoman user ls")


@app.command(name="role")
def set_role(
    name: Name,
    role: Annotated[Literal["viewer", "operator", "admin"], Parameter(name="ROLE", help="The new role.")],
    /,
    *,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Give a person another role. It counts at once, also where they are logged in."""
    answer = Hub.find(location).post("users", name, "role", body={"role": role})
    printing.done(answer, output, f"{line(name)} is {role}", "dragoman user ls")


@app.command
def token(name: Name, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Give a person an API token. The old one and all of the person's sessions end."""
    answer = Hub.find(location).post("users", name, "token")
    if printing.as_data(answer, output):
        return
    printing.verdict(True, f"the token of {line(name)}, shown this once")
    print(line(answer["token"]))
    printing.suggest("DRAGOMAN_TOKEN=… dragoman task ls")


@app.command
def rm(name: Name, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Remove a person: token, login link and sessions end at once."""
    answer = Hub.find(location).ask("DELETE", "users", name)
    printing.done(answer, output, f"{line(name)} is removed", "dragoman user ls")


@app.command
def ls(*, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """List the people."""
    page = printing.Listing(Hub.find(location).get("users"), "users", COLUMNS, output)
    page.end(True if page.items else None, page.count("user"), "dragoman user add NAME --role operator")
