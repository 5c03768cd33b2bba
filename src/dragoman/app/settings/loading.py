"""Where values come from: a file, the environment, flags; and what to say about those that do not fit."""

from __future__ import annotations

import difflib
import ipaddress
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.amqp import place_of
from dragoman.app.settings.model import TABLES, Origin, Settings, keys, value_of
from dragoman.core.ids import DAY, SECOND
from dragoman.stores.s3_files import BucketProblem
from dragoman.stores.s3_files import check as check_bucket
from dragoman.supervisor.spec import MODULES
from dragoman.wire.errors import with_next
from dragoman.wire.misfit import advice, explain

FILE = "dragoman.toml"
PREFIX = "DRAGOMAN_"

SHORT = {
    "DRAGOMAN_DATA": "data",
    "DRAGOMAN_HOST": "server.host",
    "DRAGOMAN_PORT": "server.port",
    "DRAGOMAN_GRPC_PORT": "server.grpc_port",
    "DRAGOMAN_AMQP": "amqp.url",
    "DRAGOMAN_LOG_LEVEL": "log.level",
    "DRAGOMAN_LOG_FORMAT": "log.format",
}
"""The well-known settings, by a name without a group."""

NOT_SETTINGS = (
    "DRAGOMAN_URL", "DRAGOMAN_TOKEN", "DRAGOMAN_CLIENT_", "DRAGOMAN_CONFIG", "DRAGOMAN_CRASH", "DRAGOMAN_TEST",
    "DRAGOMAN_MASTER_KEY",
)  # fmt: skip
"""Variables of ours (and beginnings of such) that are no settings: the clients', the file's name, the fault tests',
the key that is in no file."""

PATHS = frozenset({
    "data", "store.path", "tls.certificate", "tls.key", "tls.client_ca", "coven.tls_certificate", "coven.tls_key",
    "a2acp.hs256_secret", "cluster.tls", "server.metrics_token", "oidc.client_secret", "amqp.ca",
})  # fmt: skip


FORMER = {"quotas.letters_per_agent": "quotas.direct_messages_per_agent"}
"""Settings that have another name now: files and variables with the former one go on working."""


class Loaded(msgspec.Struct, frozen=True):
    settings: Settings
    origins: dict[str, Origin]
    """By the setting's dotted name, for every setting there is."""


class SettingsError(Exception):
    """Everything that is wrong with the settings, a sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load(
    *, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, file: Path | None = None
) -> Loaded:
    """The settings and where each came from. `flags` go by dotted name; None means that the flag was not given.

    Raises `SettingsError`.
    """
    known = {name: type for name, type, _ in keys()}
    problems: list[str] = []
    values: dict[str, Any] = {}
    origins = {name: Origin("default") for name in known}

    def put(name: str, value: Any, origin: Origin, place: str, *, text: bool = False) -> None:
        try:
            values[name] = msgspec.convert(_spread(value, known[name]) if text else value, known[name], strict=not text)
            origins[name] = origin
        except msgspec.ValidationError as error:
            problems.append(
                f"{place}: {explain_misfit(error) if name in TABLES else _wanted(value, error, known[name])}"
            )

    if file is not None:
        for name, value in _read(file, known, problems):
            if name in PATHS and isinstance(value, str) and value:
                value = str(file.parent / value)
            elif name == "agents":
                value = relative_to(value, file.parent)
            put(name, value, Origin("file", str(file)), f"{file}: {name}")
    for name, variable, value in _variables(environ or {}, known, problems):
        put(name, value, Origin("environment", variable), f"environment variable {variable}", text=True)
    for name, value in (flags or {}).items():
        if value is not None:
            flag = f"--{name.rpartition('.')[2].replace('_', '-')}"
            put(name, value, Origin("flag", flag), flag)

    settings = _build(values)
    if not problems:
        problems += contradictions(settings, origins)
    if problems:
        raise SettingsError(problems)
    return Loaded(settings, origins)


def _build(values: Mapping[str, Any]) -> Settings:
    groups: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for name, value in values.items():
        group, _, key = name.rpartition(".")
        (groups.setdefault(group, {}) if group else top)[key] = value
    types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    return Settings(**top, **{group: types[group](**found) for group, found in groups.items()})


def _read(file: Path, known: Mapping[str, Any], problems: list[str]) -> Iterator[tuple[str, Any]]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        problems.append(
            f"{file}: there is no such file. Give another one with -c, or leave -c out to use the defaults."
        )
        return
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file}: cannot be read: {error}")
        return
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file}: is not TOML: {error}")
        return
    groups = {name.partition(".")[0] for name in known if "." in name}
    for key, value in document.items():
        if key in groups and isinstance(value, dict):
            for inner, found in value.items():
                name = FORMER.get(f"{key}.{inner}", f"{key}.{inner}")
                if name in known:
                    yield name, found
                else:
                    problems.append(f"{file}: there is no setting {name!r}.{_hint(_nearest(name, known))}")
        elif key in groups:
            problems.append(f"{file}: {key} is a group of settings: write [{key}] and its keys below.")
        elif key in known:
            yield key, value
        else:
            choices = [*groups, *(name for name in known if "." not in name)]
            problems.append(f"{file}: there is no setting {key!r}.{_hint(_nearest(key, choices, known))}")


def _variables(
    environ: Mapping[str, str], known: Mapping[str, Any], problems: list[str]
) -> Iterator[tuple[str, str, str]]:
    names = {variable_of(name): name for name in known if name not in TABLES}
    names |= {variable_of(former): name for former, name in FORMER.items()}
    seen: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable.startswith(NOT_SETTINGS):
            continue
        found = names.get(variable) or SHORT.get(variable)
        if found is None:
            problems += _mistyped(variable, names)
        elif found in seen and environ[seen[found]] != environ[variable]:
            problems.append(f"environment variables {seen[found]} and {variable} contradict each other: unset one.")
        else:
            seen[found] = variable
            yield found, variable, environ[variable]


def _mistyped(variable: str, names: Mapping[str, str]) -> Iterator[str]:
    """A variable with a group is meant for us; one without may be another program's, unless it looks like ours."""
    grouped = "__" in variable
    # Compared without the beginning that they all share.
    ends = [known.removeprefix(PREFIX) for known in (names if grouped else SHORT)]
    close = _nearest(variable.removeprefix(PREFIX), ends)
    if grouped or close is not None:
        yield f"environment variable {variable}: no such setting.{_hint(close and PREFIX + close)}"


def variable_of(name: str) -> str:
    """The environment variable of a setting. One without a group is only known by its short name."""
    for variable, short in SHORT.items():
        if short == name and "." not in name:
            return variable
    return PREFIX + name.upper().replace(".", "__")


def explain_misfit(error: msgspec.ValidationError) -> str:
    """What is wrong with the tables, and where, but none of their values."""
    what, field = explain(error)
    return f"{what[:1].lower()}{what[1:]}{f' ({field})' if field else ''}."


def relative_to(agents: Any, directory: Path) -> Any:
    """Relative directories, allowed files and modules are meant from the file's."""
    if not isinstance(agents, list):
        return agents
    return [_relative_to(one, directory) if isinstance(one, dict) else one for one in agents]


def _relative_to(agent: dict[str, Any], directory: Path) -> dict[str, Any]:
    def absolute(place: Any) -> Any:
        return str((directory / place).absolute()) if isinstance(place, str) else place

    found = dict(agent)
    if "cwd" in agent:
        found["cwd"] = absolute(agent["cwd"])
    if isinstance(agent.get("allow_files"), list):
        found["allow_files"] = [absolute(place) for place in agent["allow_files"]]
    command = agent.get("command")
    if isinstance(command, list) and command and isinstance(command[0], str) and command[0].endswith(MODULES):
        found["command"] = [absolute(command[0]), *command[1:]]
    return found


def _spread(text: str, type: Any) -> Any:
    """A list in a variable is written with commas."""
    if str(type).startswith("tuple"):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _wanted(value: Any, error: msgspec.ValidationError, type: Any) -> str:
    what = with_next(str(error), advice(str(error), type))
    return f"{value!r} does not do: {what[:1].lower()}{what[1:]}."


def _nearest(name: str, choices: Iterable[str], instead: Iterable[str] | None = None) -> str | None:
    """The name that may be meant. `instead` are the full names, for a key that was written outside of its group."""
    choices = list(choices)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if not close and instead is not None:
        ends = {full.rpartition(".")[2]: full for full in reversed(list(instead))}
        close = [ends[end] for end in difflib.get_close_matches(name, ends, n=1, cutoff=0.8)]
    if not close and "." in name:
        ends = {full.rpartition(".")[2]: full for full in choices}
        close = [ends[end] for end in difflib.get_close_matches(name.rpartition(".")[2], ends, n=1, cutoff=0.8)]
    return close[0] if close else None


def _hint(close: str | None) -> str:
    return f" Did you mean {close!r}?" if close else " `dragoman config show` lists them all."


# -- what each value allows alone, but not together


def contradictions(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    ids = [agent.id for agent in settings.agents]
    for id in sorted({id for id in ids if ids.count(id) > 1}):
        yield f"agents ({origins['agents']}): {id!r} stands there twice: give each agent an id of its own."
    yield from _unsafe(settings, origins)
    if settings.files.url is not None:
        try:
            check_bucket(settings.files.url)
        except BucketProblem as problem:
            yield f"files.url ({origins['files.url']}): {problem}"
        if settings.store.url is None:
            yield f"files.url ({origins['files.url']}) needs a store in PostgreSQL: set store.url as well."
    yield from _cluster(settings, origins)
    rules = settings.rules
    for name in ("retry_delays_seconds", "unreachable_delays_seconds"):
        if not getattr(rules, name):
            origin = origins[f"rules.{name}"]
            yield f"rules.{name} ({origin}) is empty: write one delay for each attempt, at least one."
    horizon = sum(rules.retry_delays_seconds) + rules.idle_seconds * len(rules.retry_delays_seconds)
    if rules.request_memory_seconds < horizon:
        yield (
            f"rules.request_memory_seconds ({origins['rules.request_memory_seconds']}) is"
            f" {rules.request_memory_seconds:g}, but attempts may be repeated for {horizon:g} s: a repeated request"
            " would be done twice (all-D5). Raise it."
        )
    if 0 < rules.keep_finished_days * DAY < rules.request_memory_seconds * SECOND:
        yield (
            f"rules.keep_finished_days ({origins['rules.keep_finished_days']}) is {rules.keep_finished_days:g}, but a"
            f" finished request answers for its id for {rules.request_memory_seconds:g} s, and is forgotten with its"
            " task. Raise it, or lower rules.request_memory_seconds."
        )


def _cluster(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    store, cluster = settings.store, settings.cluster
    if store.url is None:
        if cluster.node is not None:
            origin = origins["cluster.node"]
            yield (
                f"cluster.node ({origin}) is of no use alone: set store.url (--store postgresql://…), where the nodes"
                " keep everything."
            )
        return
    if not store.url.startswith(("postgresql://", "postgres://")):
        yield f"store.url ({origins['store.url']}) must begin with postgresql://"
    if origins["store.path"].source != "default" or store.kind == "memory":
        name = "store.path" if store.kind == "sqlite" else "store.kind"
        yield f"store.url ({origins['store.url']}) and {name} ({origins[name]}) contradict each other: leave one out."
    if cluster.node is None:
        yield f"store.url ({origins['store.url']}) makes this hub a node: give it a name of its own with --node."
    if cluster.tls is None and not is_loopback(cluster.host):
        yield (
            f"cluster.host ({origins['cluster.host']}) is {cluster.host}, which others can reach, and nodes would trust"
            " anybody: set cluster.tls. Make the certificates with one CA: dragoman cert --host NODE, and dragoman cert"
            " --client NODE."
        )


def _unsafe(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    """TLS by halves, and plain ports where others can reach them (a2acp-D18)."""
    tls, coven, server = settings.tls, settings.coven, settings.server
    for one, other in (("tls.certificate", "tls.key"), ("coven.tls_certificate", "coven.tls_key")):
        for has, lacks in ((one, other), (other, one)):
            if value_of(settings, has) and not value_of(settings, lacks):
                yield f"{has} ({origins[has]}) is of no use alone: set {lacks} as well."
    if tls.client_ca and not (tls.certificate and tls.key):
        yield f"tls.client_ca ({origins['tls.client_ca']}) needs TLS: set tls.certificate and tls.key as well."
    if tls.clients == "required" and not tls.client_ca:
        origin = origins["tls.clients"]
        yield f"tls.clients ({origin}) is required, but no CA is named that signs them: set tls.client_ca."
    if settings.amqp.url is not None:
        try:
            broker = place_of(settings.amqp.url)
        except ValueError as error:
            yield f"amqp.url ({origins['amqp.url']}): {error}."
        else:
            if not broker.secure and not server.allow_plain and not is_loopback(broker.host):
                yield (
                    f"amqp.url ({origins['amqp.url']}) leads to {broker.shown}, and tokens would be sent there without"
                    " TLS. Write amqps://, or set server.allow_plain = true where nobody else can listen."
                )
    if settings.oidc.issuer is not None:
        issuer, origin = urlsplit(settings.oidc.issuer), origins["oidc.issuer"]
        if issuer.scheme != "https" and not (issuer.scheme == "http" and is_loopback(issuer.hostname or "")):
            yield f"oidc.issuer ({origin}) is {settings.oidc.issuer}: give the provider's address, with https."
        if not settings.oidc.client_id:
            yield f"oidc.issuer ({origin}) is of no use alone: set oidc.client_id as well."
    if server.allow_plain or is_loopback(server.host):
        return
    plain = [] if tls.certificate else ["HTTP"]
    if coven.enabled and not (tls.certificate or coven.tls_certificate):
        plain.append("gRPC")
    if plain:
        yield (
            f"server.host ({origins['server.host']}) is {server.host}, which others can reach, and"
            f" {' and '.join(plain)} would be spoken without TLS. Make a certificate (dragoman cert --host NAME), set"
            " tls.certificate and tls.key; or, behind a proxy that speaks TLS, set server.allow_plain = true."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
