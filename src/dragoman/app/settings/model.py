"""The table: every setting, its default and its bounds; nothing else lists a setting twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.amqp import place_of
from dragoman.core.ids import DAY, HOUR, SECOND
from dragoman.core.rules import Rules
from dragoman.sandbox.model import Level
from dragoman.supervisor.spec import (
    AllowedFile,
    AllowedHost,
    ChildLimits,
    ChildSpec,
    RestartPolicy,
    SandboxRules,
    Variable,
    Word,
    contradiction,
)

TABLES = frozenset({"agents"})
"""Lists of tables, which only a file can hold."""

URLS = frozenset({"store.url"})
"""Addresses that may have a password in them."""

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Usd = Annotated[float, Meta(ge=0)]
Span = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
NODE = r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$(?!\n)"

_D = Rules()


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An agent that the hub runs itself and that speaks forge over its standard streams:

    [[agents]]
    id = "reviewer"
    command = ["node", "reviewer.js"]
    cwd = "agents/reviewer"             # from the file's directory; a directory of its own if left out
    role = "reviewer"
    capabilities = ["typescript"]
    restart = "on-failure"              # never, on-failure, always
    env = { MODEL = "large" }           # values are never shown
    pass_env = ["OPENAI_API_KEY"]       # from the hub's own environment
    limits = { memory_mb = 512 }
    untrusted = true                    # in a sandbox or not at all; then:
    allow_files = ["agents/reviewer"]   # to read; "…:rw" to write as well
    allow_hosts = ["api.example.com"]   # port 443 unless it says another
    """

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$(?!\n)")]
    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=1000)]
    cwd: str | None = None
    env: dict[Variable, Word] = {}
    pass_env: tuple[Variable, ...] = ()
    kind: str | None = None
    role: str | None = None
    name: str | None = None
    domain: str | None = None
    version: str | None = None
    capabilities: tuple[str, ...] = ()
    work_types: tuple[str, ...] | None = None
    untrusted: bool = False
    """Whether it runs in a sandbox or not at all."""
    allow_files: tuple[AllowedFile, ...] = ()
    allow_hosts: tuple[AllowedHost, ...] = ()
    wasm: bool | None = None
    """Whether the command is a WebAssembly module; by default, if it is called so."""
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    restart: RestartPolicy = "on-failure"
    grace_seconds: Annotated[float, Meta(ge=0, le=3600)] | None = None
    """How long it may take to end when it is asked to; 30 with a task, 10 without."""
    privileges: bool = False
    """Whether it may gain privileges by programs such as sudo."""
    limits: ChildLimits = ChildLimits()

    def __post_init__(self) -> None:
        found = contradiction(self.spec())
        if found is not None:
            raise ValueError(found[1])

    def spec(self) -> ChildSpec:
        return ChildSpec(
            command=self.command,
            cwd=self.cwd,
            pass_env=self.pass_env,
            restart=self.restart,
            grace_seconds=self.grace_seconds,
            privileges=self.privileges,
            limits=self.limits,
            untrusted=self.untrusted,
            allow_files=self.allow_files,
            allow_hosts=self.allow_hosts,
            wasm=self.wasm,
            origin="config",
        )


def shown(agent: AgentSettings) -> dict[str, Any]:
    """For people: of its environment only the names, for the values may be secrets."""
    found: dict[str, Any] = msgspec.to_builtins(agent)
    return {**found, "env": sorted(agent.env)} if agent.env else found


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the hub listens, and how patient it is with its clients."""

    host: str = "127.0.0.1"
    port: Port = 8420
    grpc_port: Port = 50051
    """Where coven's agents connect; 0 picks a free one."""
    allow_plain: bool = False
    """Whether ports that others can reach may do without TLS (a2acp-D18): for a hub behind a proxy that speaks it."""
    max_message_bytes: Annotated[int, Meta(ge=1024)] = 8 * 1024 * 1024
    """The largest body or frame; anything longer is refused before it is read."""
    max_connections: Count = 10_000
    header_seconds: Span = 9.0
    """A client that has not sent its headers by then is closed."""
    body_seconds: Span = 9.0
    """The same for a body that stands still."""
    idle_seconds: Span = 75.0
    """A kept-alive connection without a request is closed."""
    max_poll_seconds: Span = 60.0
    """The longest `wait` of a long poll."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the hub answers to, beside addresses and localhost. A hub on loopback answers to no other name, so
    that no web page reaches it; one that others can reach answers to any, unless some are given here."""
    metrics_token: str | None = None
    """A file with the token that `/metrics` needs; readable by its owner only. Without it every client that reaches the
    port reads them."""
    stalled_seconds: Span = 10.0
    """`/readyz` says 503 while a commit is under way, or a command waits, for longer than this."""
    drain_seconds: Seconds = 30.0
    """At a stop, work under way may take so long to end, and streams to leave. HTTP has 10 seconds of it at most."""


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes of messages the hub holds that it has not committed or refused yet. Memory in use is several
    times as much. Beyond, requests are refused with 503 or 429, and connections are read no further."""

    in_flight_bytes: Count = 256 * 1024 * 1024
    in_flight_bytes_per_agent: Count = 64 * 1024 * 1024
    wait_seconds: Seconds = 2.0
    """A request for which there is no room waits so long, unread, before it is refused."""


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one agent may have lying in the hub that is not done with, whatever it speaks; 0 is no limit. Beyond it
    the agent is refused with 429, retryable. (Files have their own, in `files`.)"""

    bytes_per_agent: Annotated[int, Meta(ge=0)] = _D.bytes_per_agent
    """Requests of its unfinished tasks, its unacknowledged direct messages, and what it keeps in the shared state."""
    direct_messages_per_agent: Annotated[int, Meta(ge=0)] = _D.direct_messages_per_agent
    """Messages to other agents that were not acknowledged yet."""
    state_entities_per_agent: Annotated[int, Meta(ge=0)] = _D.entities_per_agent
    """Tasks that it keeps in the shared state."""
    messages_per_minute: Annotated[int, Meta(ge=0)] = _D.messages_per_agent
    """In any minute, over all protocols and links."""
    streams_per_agent: Annotated[int, Meta(ge=0)] = 500
    """Streams of events that one caller may follow at once."""
    streams: Annotated[int, Meta(ge=0)] = 5_000
    """The same, of all agents together."""


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS 1.3 for every port, from files in PEM. `dragoman cert` makes them."""

    certificate: str | None = None
    """The certificate, followed by those that lead to its CA. With `key`, all ports speak TLS and nothing else."""
    key: str | None = None
    """Readable by the hub's user only."""
    client_ca: str | None = None
    """Who signs the certificates that clients show."""
    clients: Literal["optional", "required"] = "optional"
    """Whether a client must show one. (gRPC asks for them only where they are required.)"""
    renew_seconds: Span = 60.0
    """How often the files are looked at; renewed ones are taken without a restart."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the truth is kept."""

    kind: Literal["sqlite", "memory"] = "sqlite"
    path: str | None = None
    """The database file; by default `hub.sqlite` in the data directory."""
    url: str | None = None
    """`postgresql://…`: this hub is a node of a cluster that keeps everything there. Several hosts may be named."""
    log_limit_bytes: Annotated[int, Meta(ge=8 * 1024 * 1024)] = 256 * 1024 * 1024
    """What the database's write-ahead log may hold. It comes to that only if another program reads the database and
    does not end its transaction; then new work is refused until it does."""


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """This node of a cluster; used where `store.url` is set."""

    node: Annotated[str, Meta(pattern=NODE)] | None = None
    """Its name, which no other node has."""
    realm: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,39}$(?!\n)")] = "default"
    """Which of the hubs in this database: each realm has agents, tasks, a leader and an audit record of its own."""
    host: str = "127.0.0.1"
    """Where it listens for the other nodes while it leads. Beyond loopback that needs `tls`."""
    port: Port = 0
    """0 picks a free one."""
    address: str | None = None
    """How the other nodes reach it, as HOST or HOST:PORT, where that is not `host` and `port`."""
    http: str | None = None
    """How callers reach its HTTP port, where that is not what it listens on: for `dragoman cluster status`."""
    tls: str | None = None
    """A directory with `ca.pem`, `server.pem` and `server.key` (they name this node, as `dragoman cert --host` makes
    them), and `NODE.pem` and `NODE.key` (as `dragoman cert --client` does): nodes show them to each other."""


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of `core.rules` that a person may want otherwise, with times in seconds."""

    idle_seconds: Span = _D.idle_limit / SECOND
    total_seconds: Span = _D.total_limit / SECOND
    grace_seconds: Seconds = _D.grace / SECOND
    retry_delays_seconds: tuple[Seconds, ...] = tuple(delay / SECOND for delay in _D.retry_delays)
    unreachable_delays_seconds: tuple[Seconds, ...] = tuple(delay / SECOND for delay in _D.unreachable_delays)
    breaker_threshold: Count = _D.breaker_threshold
    breaker_pause_seconds: Span = _D.breaker_pause / SECOND
    poll_lease_seconds: Span = _D.poll_lease / SECOND
    poll_presence_seconds: Span = _D.poll_presence / SECOND
    notice_attempts: Count = _D.notice_attempts
    link_window: Count = _D.link_window
    hop_limit: Count = _D.hop_limit
    output_quota_bytes: Count = _D.output_quota
    request_memory_seconds: Span = _D.request_memory / SECOND
    """So long at least the same request again is recognised after its task ended (all-D5)."""
    keep_finished_days: Seconds = _D.keep_finished / DAY
    """A task that ended is forgotten after so long, with all its messages; 0 keeps it for ever."""
    max_backlog: Count = _D.max_backlog


class ChiffonSettings(msgspec.Struct, frozen=True, kw_only=True):
    negotiation: Literal["lowest", "highest"] = "lowest"
    """Which of the common versions is spoken: the lowest, as the document says, or the highest (chiffon-D9)."""
    allow_private_callbacks: bool = False
    """Whether callback URLs may lead into private networks. Off: only public addresses are called."""


class AmqpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Chiffon's message queue: a broker of the user's, to which the hub connects."""

    url: str | None = None
    """amqp://user:password@host:port/vhost, or amqps://…; it may have a password, so it is not shown. None: no
    broker."""
    ca: str | None = None
    """A file with the CAs that sign the broker's certificate; by default, those of the system."""
    presence_seconds: Span = 5.0
    """How often the hub looks whether agents consume their queues."""


class CovenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The gRPC port. `server.grpc_port` says which; without `enabled` it is not opened."""

    enabled: bool = True
    guests: bool = False
    """Whether agents without a token are let in (only on loopback). `dragoman dev` turns it on."""
    keepalive_seconds: Span = 30.0
    """How often a silent stream is asked whether it is alive."""
    keepalive_timeout_seconds: Span = 10.0
    register_seconds: Span = 10.0
    """A stream that has not registered by then is closed."""
    shutdown_seconds: Seconds = 30.0
    """At a stop, agents have so long to finish and leave; then their streams are closed."""
    max_streams: Count = 2_000
    max_message_bytes: Annotated[int, Meta(ge=1024)] = 16 * 1024 * 1024
    tls_certificate: str | None = None
    """A PEM file, where this port shall not have the certificate of the others; with `tls_key`."""
    tls_key: str | None = None


class ForgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one agent may say (forge-D9), and how long a request waits."""

    messages_per_second: Span = 100.0
    burst: Count = 200
    request_seconds: Span = 30.0
    """How long a person has for a question that has no time of its own (forge-D8)."""


class AgentmsgSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the hub is with agents that converse, and what their work may cost."""

    heartbeat_seconds: Span = _D.heartbeat / SECOND
    """How often agents are asked to show that they are alive."""
    heartbeats_missed: Count = _D.heartbeats_missed
    """An agent that is silent for so many of them is offline (agentmsg-D12)."""
    retry_base_seconds: Span = _D.direct_message_waits[0] / SECOND
    """What was not acknowledged is sent again after so long at first (agentmsg-D7),"""
    retry_multiplier: Count = _D.direct_message_waits[2]
    """then after so many times as long as before,"""
    retry_max_seconds: Span = _D.direct_message_waits[1] / SECOND
    """at most so long."""
    retry_jitter: bool = _D.direct_message_jitter
    attempts: Count = _D.direct_message_attempts
    """How often a work order or a notice is sent; agents' own messages say so themselves."""
    budget_per_task: Usd | None = None
    """USD; without a number there is no limit. The shared policy may say otherwise later."""
    budget_per_agent: Usd | None = None
    budget_total: Usd | None = None


class A2acpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The broker: its name, whose tokens it accepts, and how many messages it takes."""

    broker_id: str = "protocol-broker-agent"
    broker_domain: str = "a_domain"
    broker_version: str = "1.0.0"
    issuer: str = "a_domain-auth-service"
    token_ttl_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0
    """How long a token lasts whose agent does not say; at most a day (a2acp-D4)."""
    hs256_secret: str | None = None
    """A file with a secret of at least 32 bytes, whose tokens are taken beside our own; its owner's only."""
    hs256_kid: str = "shared"
    """What such tokens name as their key."""
    contract_hours: Span = _D.contract_lasts / HOUR
    messages_per_agent: Annotated[int, Meta(ge=0)] = _D.per_minute[0]
    """In any minute (a2acp-D16); 0 is no limit."""
    messages_per_collaboration: Annotated[int, Meta(ge=0)] = _D.per_minute[1]
    messages_per_broker: Annotated[int, Meta(ge=0)] = _D.per_minute[2]


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Logging in by an OpenID Connect provider; off without an issuer."""

    issuer: str | None = None
    """Its address, as its own tokens name it."""
    client_id: str = ""
    client_secret: str | None = None
    """A file with the secret; its owner's only. None for a public client."""
    role_claim: str = "role"
    """The claim of the ID token that names a person's role: viewer, operator or admin, or a list with one of them."""
    public_url: str | None = None
    """Where browsers reach this hub, if that is not where the request came to: behind a proxy."""


class FileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files that belong to tasks: in `files` in the data directory; in PostgreSQL, where the store is there."""

    url: str | None = None
    """`s3://BUCKET/PREFIX`: where their bytes lie instead, where the store is PostgreSQL. With
    `?endpoint=https://…&region=…` for storage that is not AWS's; credentials come from the environment (`AWS_…`)."""
    largest_bytes: Count = 16 * 1024 * 1024
    quota_bytes: Count = 10 * 1024 * 1024 * 1024
    """All of them together."""
    agent_quota_bytes: Annotated[int, Meta(ge=0)] = 5 * 1024 * 1024 * 1024
    """Those that one agent brought; 0 is no limit."""
    keep_unused_hours: Seconds = 24.0
    """A file that belongs to no task is removed when it was not read for so long; 0 keeps it for ever."""


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where untrusted agents that the hub runs are held (a2acp-D17). What is below is refused, never run."""

    minimum: Literal["hyperlight", "wasm", "bubblewrap", "landlock+seccomp"] = "bubblewrap"
    """The weakest level that will do; the strongest that stands is taken. `dragoman sandbox check` shows which do."""
    task_seconds: Span = 60.0
    """How long such an agent may work on one task; `limits` of an agent may say otherwise, here and below."""
    memory_mb: Count = 1024
    processes: Count = 64
    """Threads are counted, too."""
    file_mb: Count = 256
    """The largest file it may write."""
    scratch_mb: Count = 64
    """Its /tmp, which is memory."""
    fuel: Count | None = None
    """Instructions that a WebAssembly module may take for a task, roughly; without a number only time counts."""

    def child_rules(self) -> SandboxRules:
        return SandboxRules(**{**msgspec.structs.asdict(self), "minimum": Level(self.minimum)})


MOST_UNANSWERED = 512
"""Messages of one agent that may wait for their commit, over an old and a new connection."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data: str = ".dragoman"
    """The data directory: the embedded store, the admin token, and what clients on this machine need."""
    server: Server = Server()
    memory: MemorySettings = MemorySettings()
    quotas: QuotaSettings = QuotaSettings()
    tls: TlsSettings = TlsSettings()
    store: StoreSettings = StoreSettings()
    cluster: ClusterSettings = ClusterSettings()
    rules: RuleSettings = RuleSettings()
    chiffon: ChiffonSettings = ChiffonSettings()
    amqp: AmqpSettings = AmqpSettings()
    coven: CovenSettings = CovenSettings()
    forge: ForgeSettings = ForgeSettings()
    agentmsg: AgentmsgSettings = AgentmsgSettings()
    a2acp: A2acpSettings = A2acpSettings()
    files: FileSettings = FileSettings()
    oidc: OidcSettings = OidcSettings()
    sandbox: SandboxSettings = SandboxSettings()
    log: LogSettings = LogSettings()
    agents: tuple[AgentSettings, ...] = ()
    """Agents that the hub starts itself."""

    @property
    def store_path(self) -> Path:
        return Path(self.store.path) if self.store.path else Path(self.data) / "hub.sqlite"

    def core_rules(self) -> Rules:
        """The rules as the core counts them: whole microseconds."""
        of, agentmsg, broker = self.rules, self.agentmsg, self.a2acp
        return Rules(
            idle_limit=_micros(of.idle_seconds),
            total_limit=_micros(of.total_seconds),
            grace=_micros(of.grace_seconds),
            retry_delays=tuple(_micros(delay) for delay in of.retry_delays_seconds),
            unreachable_delays=tuple(_micros(delay) for delay in of.unreachable_delays_seconds),
            breaker_threshold=of.breaker_threshold,
            breaker_pause=_micros(of.breaker_pause_seconds),
            poll_lease=_micros(of.poll_lease_seconds),
            poll_presence=_micros(of.poll_presence_seconds),
            notice_attempts=of.notice_attempts,
            link_window=of.link_window,
            hop_limit=of.hop_limit,
            output_quota=of.output_quota_bytes,
            carried=(("coven", self.coven.max_message_bytes),),
            request_memory=_micros(of.request_memory_seconds),
            keep_finished=int(of.keep_finished_days * DAY),
            max_backlog=of.max_backlog,
            bytes_per_agent=self.quotas.bytes_per_agent,
            direct_messages_per_agent=self.quotas.direct_messages_per_agent,
            entities_per_agent=self.quotas.state_entities_per_agent,
            messages_per_agent=self.quotas.messages_per_minute,
            paces=(("forge", int(60 * self.forge.messages_per_second) + self.forge.burst + MOST_UNANSWERED),),
            heartbeat=_micros(agentmsg.heartbeat_seconds),
            heartbeats_missed=agentmsg.heartbeats_missed,
            direct_message_waits=(
                _micros(agentmsg.retry_base_seconds),
                _micros(agentmsg.retry_max_seconds),
                agentmsg.retry_multiplier,
            ),
            direct_message_jitter=agentmsg.retry_jitter,
            direct_message_attempts=agentmsg.attempts,
            budget_per_task=agentmsg.budget_per_task,
            budget_per_agent=agentmsg.budget_per_agent,
            budget_total=agentmsg.budget_total,
            per_minute=(broker.messages_per_agent, broker.messages_per_collaboration, broker.messages_per_broker),
            contract_lasts=int(broker.contract_hours * HOUR),
        )


class Origin(msgspec.Struct, frozen=True):
    """`source`: flag, environment, file or default. `name`: the flag, the variable, the file."""

    source: Literal["flag", "environment", "file", "default"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}".rstrip()


def keys(of: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every setting: its dotted name, its type, its default."""
    for field in msgspec.structs.fields(of):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from keys(field.type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field.type, field.default


def value_of(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    if name in URLS and value:
        return without_password(value)
    if name in TABLES:  # for people: values that may be secrets are left out
        return [shown(one) for one in value]
    if name == "amqp.url" and value is not None:
        return place_of(value).shown
    return value


def without_password(url: str) -> str:
    """For people: the address without the secret in it."""
    found = re.sub(r"(?<=://)([^/@]*?):[^/]*@", r"\1:…@", url)
    return re.sub(r"(?<=[?&]password=)[^&]*", "…", found)


def _micros(seconds: float) -> int:
    return round(seconds * SECOND)
