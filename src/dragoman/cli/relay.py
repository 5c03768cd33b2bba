"""`dragoman relay`: an agent of this hub that has its work done by another hub. See `sdk.relay`."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line

TOKEN = "DRAGOMAN_RELAY_TOKEN"


def relay(
    there: Annotated[str, Parameter(name="URL", help="The other hub: http(s)://HOST:PORT.")],
    /,
    *,
    id: Annotated[str, Parameter(name="--id", help="The agent's id at this hub.")] = "relay",
    work: Annotated[
        list[str] | None,
        Parameter(negative=(), help="Pass on only this work; may be repeated [all that agents there do]."),
    ] = None,
    hub: Annotated[
        str | None,
        Parameter(help="Where this hub is, as for any agent: chiffon+ws://… [DRAGOMAN_URL; a child needs none]."),
    ] = None,
    state_dir: Annotated[str | None, Parameter(help="Where answers and results survive a restart.")] = None,
) -> None:
    """Be an agent of this hub whose work another hub does.

    The token for the other hub (of a person there who is an operator) is in DRAGOMAN_RELAY_TOKEN.
    """
    from dragoman.sdk import program
    from dragoman.sdk.address import API, parse
    from dragoman.sdk.errors import DragomanError
    from dragoman.sdk.relay import Relay

    token = os.environ.get(TOKEN)
    if not token:
        raise CommandError(
            Exit.USAGE, f"{TOKEN} is not set: it is the token of a person at {line(there)}",
            next="dragoman user add NAME --role operator, and dragoman user token NAME, at the other hub",
        )  # fmt: skip
    try:
        address = parse(there, token)
        if address.protocol != API:
            raise CommandError(Exit.USAGE, f"{line(there)} is not the address of a hub's API", next="http://HOST:8420")
        program.run(Relay(id, address, only=work or (), state_dir=state_dir), hub)
    except DragomanError as error:
        raise CommandError(Exit.NOT_ALLOWED, line(str(error)), next="dragoman relay --help") from None
