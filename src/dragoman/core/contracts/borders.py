"""Which domains may ask which (a2acp-D19): entries of the shared policy, versioned and audited with it.

One that forbids beats all that allow. Within one domain nothing has to allow it. `*` is any domain; no intents means
all of them; `encrypt` wants what passes between them encrypted. What is said of a border later holds for contracts that
stand, too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.contracts.model import Contract
from dragoman.core.errors import Kind, refuse
from dragoman.core.state.model import Registry
from dragoman.core.state.policy import DOMAINS, NAME
from dragoman.core.work import Work

ANY = "*"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    source: str
    target: str
    allow: bool = True
    intents: tuple[str, ...] = ()
    encrypt: bool = False

    def covers(self, source: str, target: str, intent: str) -> bool:
        named = self.source in (ANY, source) and self.target in (ANY, target)
        return named and (not self.intents or intent in self.intents)


def entries(work: Work) -> list[Entry]:
    policy = work.entity(Registry.POLICY, NAME)
    said: Any = [] if policy is None else policy.value.get(DOMAINS, [])
    try:
        return msgspec.convert(said, list[Entry])
    except msgspec.ValidationError:
        return []  # written by hand, and wrongly: nothing is allowed by it


def check(work: Work, source: str, target: str, intent: str) -> bool:
    """Whether what passes must be encrypted; refused if no policy lets them work together."""
    found = [entry for entry in entries(work) if entry.covers(source, target, intent)]
    if not all(entry.allow for entry in found) or not (found or source == target):
        raise refuse(
            Kind.FORBIDDEN,
            f"no domain policy lets {source} ask {target} for {intent}; see `dragoman policy allow`",
            source_domain=source,
            target_domain=target,
            intent=intent,
        )
    return any(entry.encrypt for entry in found)


def check_standing(work: Work, contract: Contract) -> None:
    """Whether the policies still let these two work together on these terms."""
    source, target = contract.source.domain, contract.target.domain
    if check(work, source, target, contract.intent) and not contract.encrypted:
        what = f"the domain policy wants what passes from {source} to {target} encrypted by now; shake hands anew"
        raise refuse(Kind.FORBIDDEN, what, field="contract_id", contract_id=contract.id)
