"""When a message that nobody acknowledged is sent again: a pure function of the configuration, the count and chance.

    attempt                1      2      3      4
    milliseconds after     1000   2000   4000   8000, then the dead letters

are the defaults (D7), before jitter. With jitter a delay lies between its half and its whole, so that a crowd of
senders who failed together does not come back together, and none comes back at once. `chance` is a number from 0 up
to 1 that the caller drew.

A message may say some of it itself (`metadata.retry_config`), field by field; what it leaves out is as the policy has
it. How often it is sent is said by `max_retries`, which every message has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta, Struct, structs

from dragoman.protocols.agentmsg.records import Record

if TYPE_CHECKING:
    from dragoman.protocols.agentmsg.types import MessageMetadata

Attempts: TypeAlias = Annotated[int, Meta(ge=1)]

Milliseconds: TypeAlias = (
    Annotated[int, Meta(ge=0, le=1_000_000_000_000)] | Annotated[float, Meta(ge=0, le=1_000_000_000_000)]
)
Factor: TypeAlias = Annotated[int, Meta(ge=1, le=1000)] | Annotated[float, Meta(ge=1, le=1000)]


class RetryConfig(Struct, frozen=True, kw_only=True):
    """Attempts are retries and the first one (D7)."""

    max_attempts: Attempts = 4
    base_delay_ms: Milliseconds = 1000
    max_delay_ms: Milliseconds = 30_000
    backoff_multiplier: Factor = 2
    jitter: bool = True


DEFAULT = RetryConfig()


class RetryWish(Record, frozen=True, kw_only=True):
    """The fields of a RetryConfig that a message sets itself."""

    max_attempts: Attempts | None = None
    base_delay_ms: Milliseconds | None = None
    max_delay_ms: Milliseconds | None = None
    backoff_multiplier: Factor | None = None
    jitter: bool | None = None


def configured(metadata: MessageMetadata, policy: RetryConfig = DEFAULT) -> RetryConfig:
    """The configuration for one message: its own count of retries, its own delays or else the policy's."""
    said = {} if metadata.retry_config is None else structs.asdict(metadata.retry_config)
    own = {name: value for name, value in said.items() if value is not None}
    return structs.replace(policy, **{**own, "max_attempts": metadata.max_retries + 1})


def delay(config: RetryConfig, attempt: int, chance: float) -> float:
    """Milliseconds to wait for an acknowledgment after the `attempt`th sending, which is counted from 1."""
    whole = _whole(config, attempt)
    return whole * (1 + chance) / 2 if config.jitter else whole


def _whole(config: RetryConfig, attempt: int) -> float:
    if not config.base_delay_ms:
        return 0.0
    # In logarithms, because a power overflows long before anybody stops retrying.
    steps = math.log(config.base_delay_ms) + (attempt - 1) * math.log(config.backoff_multiplier)
    if config.max_delay_ms <= config.base_delay_ms or steps >= math.log(config.max_delay_ms):
        return float(config.max_delay_ms)
    return min(float(config.base_delay_ms * config.backoff_multiplier ** (attempt - 1)), float(config.max_delay_ms))
