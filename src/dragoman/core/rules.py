"""The numbers the hub lives by, in one place. Settings may change them; decisions only read them."""

from __future__ import annotations

import msgspec

from dragoman.core.ids import DAY, HOUR, MINUTE, SECOND
from dragoman.core.protocol_capabilities import LIMITED
from dragoman.messages.faults import Kind


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    idle_limit: int = 30 * SECOND
    """Without a sign of life for so long, an attempt has failed (chiffon-D6)."""
    total_limit: int = HOUR
    """A task that names no limit may take so long (chiffon-D6)."""
    grace: int = 5 * SECOND
    """So long an agent whose link broke may take to come back before its work counts as lost."""
    retry_delays: tuple[int, ...] = (0, 1 * SECOND, 2 * SECOND, 4 * SECOND)
    """Delay before each attempt at a task: attempts = 1 + 3 retries (chiffon-D7)."""
    unreachable_delays: tuple[int, ...] = (0, 1 * SECOND, 2 * SECOND, 4 * SECOND)
    """The same for a task that no agent has had yet, while none that could do it is connected (chiffon-D6)."""
    retried: frozenset[Kind] = frozenset({Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.RESOURCES})
    """What is tried again: 5001, 5002 and 5005 in chiffon's words."""
    breaking: frozenset[Kind] = frozenset({Kind.TIMEOUT, Kind.UNAVAILABLE})
    """What counts against an agent (chiffon-D7)."""
    breaker_threshold: int = 5
    breaker_pause: int = MINUTE
    poll_lease: int = 30 * SECOND
    """How long a long-poll client may hold a notice before it is offered again."""
    poll_presence: int = 60 * SECOND
    """An agent that polled so recently is there, even between two polls."""
    notice_attempts: int = 8
    direct_message_waits: tuple[int, int, int] = (SECOND, 30 * SECOND, 2)
    """What an agent that converses does not acknowledge leaves again after the first of these, then after so many times
    as long as before, at most the second (agentmsg-D7)."""
    direct_message_jitter: bool = True
    direct_message_attempts: int = 4
    """How often a work order or a notice is put before such an agent. Direct messages say so themselves."""
    replay_memory: int = HOUR
    """How long a message or a nonce that counts once is remembered by itself (a2acp-D12, D15): much longer than one may
    be old."""
    link_window: int = 1024
    """Unacknowledged notices on one ordered link whose peer acknowledges."""
    link_bytes: int = 8 * 1024 * 1024
    """What one link may have that is not yet written to its peer."""
    head_start: tuple[tuple[str, int], ...] = (
        ("low", 0),
        ("normal", MINUTE),
        ("high", 5 * MINUTE),
        ("critical", HOUR),
    )
    """Priority with ageing, as one number that never has to be recomputed: a task is ranked by its birth minus
    this head start, so a high one overtakes normal ones up to four minutes older, and nobody starves."""
    hop_limit: int = 8
    recent_messages: int = 16
    output_quota: int = 64 * 1024 * 1024
    """Bytes of output one task may produce."""
    file_quota: int = 256 * 1024 * 1024
    """Bytes of files that may belong to one task."""
    files_per_task: int = 100
    carried: tuple[tuple[str, int], ...] = (("coven", 16 * 1024 * 1024),)
    """Protocols whose work orders carry the attachments, and the bytes that one such message may have (coven-D9).
    Agents of the others fetch attachments beside the messages."""
    keep_finished: int = 30 * DAY
    """How long a task that ended is kept, with all that was said in it; 0 is for ever."""
    request_memory: int = 24 * HOUR
    """How long a finished request answers for its id, and a direct message is recognised when it comes again
    (all-D5)."""
    per_minute: tuple[int, int, int] = (1000, 100, 10_000)
    """Messages in a sliding minute of an agent, a collaboration and everybody, in the protocols that are limited
    (a2acp-D16); 0 is no limit."""
    limited: frozenset[str] = LIMITED
    contract_lasts: int = 24 * HOUR
    """How long a contract is good for (a2acp-D7)."""
    bytes_per_agent: int = 4 * 1024 * 1024 * 1024
    """What one principal may have lying here that is not done with (`policy.quotas`); 0 is no limit."""
    direct_messages_per_agent: int = 1_000_000
    entities_per_agent: int = 10_000
    messages_per_agent: int = 1_200_000
    """In a sliding minute, whatever it speaks and over all its links; 0 is no limit."""
    max_backlog: int = 2_000_000
    """Queued tasks per queue before new ones are refused."""
    heartbeat: int = 10 * SECOND
    heartbeats_missed: int = 3
    """An agent that converses and is silent for so many heartbeats is offline (agentmsg-D12)."""
    state_log: int = 100_000
    """Changes of the shared state that a watcher may be behind before it must read everything anew."""
    status_history: int = 32
    """Earlier reports of an agent that are kept."""
    error_history: int = 20
    """Error reports of an agent that are kept with it."""
    budget_per_task: float | None = None
    budget_per_agent: float | None = None
    budget_total: float | None = None
    """USD; None is no limit. What the policy says before anybody changes it."""
