"""Who may call, by settings: under which names the hub is called, and by which token its metrics are read."""

from __future__ import annotations

from pathlib import Path

from dragoman.app.settings import Settings, is_loopback
from dragoman.security import private
from dragoman.security.private import PrivateFileError
from dragoman.security.tokens import token_hash
from dragoman.server.hosts import Hosts

SHORTEST_TOKEN = 16


def metrics_token(settings: Settings) -> str | None:
    """The hash of the token that whoever reads metrics must bring, where one is wanted."""
    if settings.server.metrics_token is None:
        return None
    path = Path(settings.server.metrics_token)
    try:
        token = private.read(path).decode().strip()
    except (OSError, UnicodeDecodeError, PrivateFileError) as error:
        raise PrivateFileError(f"server.metrics_token: {path} cannot be read ({error}); put a token into it") from None
    if len(token) < SHORTEST_TOKEN:
        raise PrivateFileError(f"server.metrics_token: the token in {path} has less than {SHORTEST_TOKEN} characters")
    return token_hash(token)


def hosts_of(settings: Settings) -> Hosts:
    """The names this hub answers to: where only this machine reaches it, no page of a browser does by another."""
    server = settings.server
    if not server.allowed_hosts and not is_loopback(server.host):
        return Hosts(None)
    return Hosts((server.host, *server.allowed_hosts))
