"""The numbers that decisions depend on, in one place. Settings may change them; decisions only read them."""

from __future__ import annotations

import msgspec

from dragoman.core.ids import DAY, HOUR, MINUTE, SECOND
from dragoman.core.protocol_capabilities import LIMITED
from dragoman.messages.faults import Kind


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    idle_limit: int = 30 * SECOND
    """An attempt fails after so long without a sign of life (chiffon-D6)."""
    total_limit: int = HOUR
    """How long a task may take that names no limit (chiffon-D6)."""
    grace: int = 5 * SECOND
    """How long an agent whose link broke may take to come back before its work counts as lost."""
    retry_delays: tuple[int, ...] = (0, 1 * SECOND, 2 * SECOND, 4 * SECOND)
    """The delay before each attempt at a task: 1 attempt and 3 retries (chiffon-D7)."""
    unreachable_delays: tuple[int, ...] = (0, 1 * SECOND, 2 * SECOND, 4 * SECOND)
    """The same for a task that no agent has had yet, while none that could do it is connected (chiffon-D6)."""
    retried: frozenset[Kind] = frozenset({Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.RESOURCES})
    """Kinds of faults that are retried: 5001, 5002 and 5005 in chiffon."""
    breaking: frozenset[Kind] = frozenset({Kind.TIMEOUT, Kind.UNAVAILABLE})
    """Kinds of faults that count against an agent (chiffon-D7)."""
    breaker_threshold: int = 5
    breaker_pause: int = MINUTE
    poll_lease: int = 30 * SECOND
    """How long a poll may hold a notice before the hub offers it again."""
    poll_presence: int = 60 * SECOND
    """An agent that polled so recently is present, also between two polls."""
    notice_attempts: int = 8
    direct_message_waits: tuple[int, int, int] = (SECOND, 30 * SECOND, 2)
    """What an agent that converses does not acknowledge leaves again after the first wait, then after growing waits:
    each is the third number times as long as the one before, at most the second (agentmsg-D7)."""
    direct_message_jitter: bool = True
    direct_message_attempts: int = 4
    """How often a work order or a notice is sent to such an agent. Direct messages have their own number."""
    replay_memory: int = HOUR
    """How long the hub remembers a message or a nonce that counts once (a2acp-D12, D15): much longer than a message may
    be old."""
    link_window: int = 1024
    """Unacknowledged notices on one ordered link whose peer acknowledges."""
    link_bytes: int = 8 * 1024 * 1024
    """Bytes that may wait in the hub to be written to one link."""
    head_start: tuple[tuple[str, int], ...] = (
        ("low", 0),
        ("normal", MINUTE),
        ("high", 5 * MINUTE),
        ("critical", HOUR),
    )
    """The head start of each priority. A task is ranked by its creation minus this, one number that is never
    recomputed: a high one overtakes normal ones that are up to four minutes older, and no task starves."""
    hop_limit: int = 8
    recent_messages: int = 16
    output_quota: int = 64 * 1024 * 1024
    """Bytes of output that one task may produce."""
    file_quota: int = 256 * 1024 * 1024
    """Bytes of files that may belong to one task."""
    files_per_task: int = 100
    carried: tuple[tuple[str, int], ...] = (("coven", 16 * 1024 * 1024),)
    """Protocols whose work orders carry the attachments, and the bytes that one such message may have (coven-D9).
    Agents of the others fetch attachments apart from the messages."""
    keep_finished: int = 30 * DAY
    """How long an ended task is kept, with its events; 0 is for ever."""
    request_memory: int = 24 * HOUR
    """How long a finished request answers for its id, and a repeated direct message is recognised (all-D5)."""
    per_minute: tuple[int, int, int] = (1000, 100, 10_000)
    """Messages in a sliding minute of one agent, of one collaboration and of all, in the protocols that are limited
    (a2acp-D16); 0 is no limit."""
    limited: frozenset[str] = LIMITED
    contract_lasts: int = 24 * HOUR
    """How long a contract is in force (a2acp-D7)."""
    bytes_per_agent: int = 4 * 1024 * 1024 * 1024
    """Unfinished bytes that one principal may have in the store (`policy.quotas`); 0 is no limit."""
    direct_messages_per_agent: int = 1_000_000
    entities_per_agent: int = 10_000
    messages_per_agent: int = 1_200_000
    """Messages of one agent in a sliding minute, in any protocol and over all its links; 0 is no limit."""
    paces: tuple[tuple[str, int], ...] = (("forge", 60 * 100 + 200 + 512),)
    """Commands of one agent in a sliding minute, for protocols with a rate of their own, over all nodes (forge-D9).
    Endpoints hold agents to the rate by the second, each at its node; this is a minute of it, with what an endpoint
    lets pass at once and what may wait for a slow commit."""
    max_backlog: int = 2_000_000
    """Queued tasks per queue before new ones are refused."""
    heartbeat: int = 10 * SECOND
    heartbeats_missed: int = 3
    """An agent that converses and is silent for so many heartbeats is offline (agentmsg-D12)."""
    state_log: int = 100_000
    """So many changes a watcher of the shared state may be behind before it must read everything again."""
    status_history: int = 32
    """How many earlier reports of an agent are kept."""
    error_history: int = 20
    """How many error reports of an agent are kept."""
    budget_per_task: float | None = None
    budget_per_agent: float | None = None
    budget_total: float | None = None
    """The policy's limit in USD until a person changes it; None is no limit."""
