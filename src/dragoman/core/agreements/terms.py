"""Terms: requests and results must fit what caller and agent agreed on, in every protocol.

    a task                                  its input must fit            its result must fit
    --------------------------------------  ----------------------------  --------------------
    under a contract                        the contract's input schema   its output schema
    of a type its agent made an offer for   the offer's input schema      the offer's output schema
    of such a type, for no named agent      that of the agent it goes to  that of the agent that did it
    of any other type                       -                             -

The hub does not validate payloads that only the two agents can read; the contract says so. Faults name places in the
payload, never values; where the payload is personal or encrypted, no names either that the schema does not have. What
one agent declared as personal is personal for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.core.agreements import domain_policy
from dragoman.core.commands import Submit
from dragoman.core.ids import ADMIN, HUB, AgentId
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import Contract, Standing
from dragoman.core.model.tasks import Task
from dragoman.core.protocol_capabilities import SEALS
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, refuse
from dragoman.messages.tasks import Result, read_request
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.schema.library import Compiled, Library

LIBRARY = Library()
"""Compiled schemas. What a schema accepts depends on nothing but itself."""
TEXT_LIMITS = guard.Limits(bytes=16 * 1024 * 1024)
"""How much of an agent's text is read as JSON."""


def agreed(work: Work, command: Submit) -> Contract | None:
    """The contract that a task names, if it is valid for it."""
    if command.agreement.contract is None:
        return None
    contract = work.contract(command.agreement.contract)
    if contract is None or contract.source.agent != command.principal:
        raise refuse(
            Kind.CONTRACT,
            "the contract is not yours to ask on",
            next="shake hands for one",
            field="contract_id",
            contract_id=command.agreement.contract,
        )
    check_in_force(work, contract)
    for field, asked, meant in (("intent", command.type, contract.intent),):
        if asked != meant:
            raise refuse(
                Kind.CONTRACT,
                f"the contract is about {meant!r}, not {asked!r}",
                next="shake hands for that",
                field=field,
                contract_id=contract.id,
            )
    if contract.encrypted and contract.end_to_end and not command.agreement.sealed:
        raise refuse(
            Kind.FORBIDDEN,
            "the contract wants payloads that only the two agents can read",
            next="send it as aes256",
            field="security.encryption",
            contract_id=contract.id,
        )
    return contract


def check_in_force(work: Work, contract: Contract) -> None:
    """Refuse where a contract is not in force now."""
    if not contract.honoured(work.now):
        standing = contract.at(work.now).value
        raise refuse(
            Kind.CONTRACT,
            f"the contract is {standing}",
            next="shake hands for a new one",
            field="contract_id",
            contract_id=contract.id,
            standing=standing,
        )
    if not between_the_same(work, contract):
        raise refuse(
            Kind.CONTRACT,
            "one of the two who agreed was removed",
            next="shake hands for a new contract",
            field="contract_id",
            contract_id=contract.id,
            standing=Standing.TERMINATED.value,
        )
    domain_policy.check_standing(work, contract)


def between_the_same(work: Work, contract: Contract) -> bool:
    """Whether both parties still exist: a new agent under the same name agreed to nothing."""
    source, target = work.agent(contract.source.agent), work.agent(contract.target.agent)
    if source is None or target is None:
        return False
    return source.created_at <= contract.created_at and target.created_at <= contract.created_at


def still_agreed(work: Work, task: Task) -> bool:
    """Whether a task may be assigned: not if one of the two parties of its contract is gone."""
    contract = None if task.agreement.contract is None else work.contract(task.agreement.contract)
    return contract is None or between_the_same(work, contract)


def offer_for(work: Work, command: Submit, contract: Contract | None) -> Offer | None:
    """The terms of a new task."""
    if contract is not None:
        return contract.offer
    target = None if command.routing.pinned is None else work.agent(command.routing.pinned)
    if target is None:
        return None
    domain_policy.check_open(work, command.principal, target, command.type)
    offer = target.offer(command.type)
    if command.agreement.personal or (offer is not None and offer.pii):
        check_sealed(target, command.type)
    if offer is not None:
        check_granted(work, command, target, offer)
    return offer


def check_sealed(target: Agent, type: str) -> None:
    """Refuse to send personal data unencrypted to an agent that must get it encrypted (a2acp-D13)."""
    if target.protocol in SEALS:
        raise refuse(
            Kind.FORBIDDEN,
            f"{type} is personal, and {target.id} takes it encrypted only",
            next="shake hands with it for a key",
            field="contract_id",
            pii=True,
        )


def check_granted(work: Work, command: Submit, target: Agent, offer: Offer) -> None:
    """A caller without a token needs the capabilities that the offer requires from a person: its own claims do not
    count. People may ask for anything."""
    missing = sorted(set(offer.required_capabilities) - granted(work, command.principal, offer.required_capabilities))
    if missing:
        lacks = f"{command.principal} lacks {', '.join(missing)}, which {target.id} requires for {offer.intent}"
        raise refuse(Kind.FORBIDDEN, lacks, next="people grant it: `dragoman agent add --capability`", missing=missing)


def granted(work: Work, principal: AgentId, wanted: Iterable[str]) -> set[str]:
    """The capabilities among these that a person has given to the caller."""
    if principal in (ADMIN, HUB):
        return set(wanted)
    asker = work.agent(principal)
    return set() if asker is None else (set(wanted) & set(asker.capabilities)) - set(asker.declared)


def may_pass_to(work: Work, task: Task, agent: Agent) -> bool:
    """Whether a begun task fits the terms of its next agent: those that it declared for such work, and those of the
    task's contract."""
    contract = None if task.agreement.contract is None else work.contract(task.agreement.contract)
    if contract is not None and agent.id in contract.parties:
        return True
    if contract is not None and contract.encrypted and contract.end_to_end:
        return False  # no other agent can read the request
    offer = agent.offer(task.type)
    if (task.agreement.personal or (offer is not None and offer.pii)) and agent.protocol in SEALS:
        return False  # it would arrive unencrypted
    if offer is None:
        return True
    wanted = offer.required_capabilities
    if (offer.pii and not task.agreement.personal) or granted(work, task.origin.principal, wanted) != set(wanted):
        return False
    if offer.input_schema is True:
        return True
    source = read_request(work.event(task.id, task.attempt.source).body)
    return LIBRARY.compiled(offer.input_schema).accepts(None if source.input is UNSET else source.input)


def check_input(command: Submit, offer: Offer | None, contract: Contract | None) -> None:
    if offer is not None and offer.input_schema is not True and not command.agreement.sealed:
        check_content(command.content.given, offer, contract)


def check_again(work: Work, task: Task, edited: bytes | None) -> None:
    """Whether an ended task may be retried: it asks its agent once more, so its contract must be in force. A new input
    must fit the terms, and cannot replace a ciphertext."""
    contract = None if task.agreement.contract is None else work.contract(task.agreement.contract)
    if contract is not None:
        check_in_force(work, contract)
    if edited is None:
        return
    if contract is not None and contract.end_to_end:
        raise refuse(
            Kind.FORBIDDEN,
            "only the two agents can read what was asked, or write it",
            next="try it again as it is",
            field="input",
            contract_id=contract.id,
        )
    target = None if task.routing.pinned is None else work.agent(task.routing.pinned)
    offer = contract.offer if contract is not None else None if target is None else target.offer(task.type)
    if offer is not None and offer.input_schema is not True:
        check_content(msgspec.json.decode(edited), offer, contract)


def check_content(content: Any, offer: Offer, contract: Contract | None) -> None:
    terms = LIBRARY.compiled(offer.input_schema, key=key(contract, "input"))
    if not terms.accepts(content):
        found = misfits(terms, content, hidden=is_private(offer, contract))
        what = f"the payload does not fit the input schema: {_first(found)}"
        kind = Kind.CONTRACT if contract else Kind.INVALID
        raise refuse(kind, what, field="payload", schema="input", **facts(contract, found))


def kept(work: Work, task: Task, result: Result) -> Result | Fault:
    """A result as the caller gets it, or the fault if it breaks the terms of its agent.

    In some protocols a result is only a text. If the text is JSON that fits, that is the result; or the text itself may
    fit, or `{"output": text}`, which a caller gets where a result must be an object.
    """
    contract = None if task.agreement.contract is None else work.contract(task.agreement.contract)
    if contract is not None and contract.end_to_end:
        return result
    owner = None if task.owner is None else work.agent(task.owner)
    offer = contract.offer if contract is not None else None if owner is None else owner.offer(task.type)
    if offer is None or offer.output_schema is True:
        return result
    content = result.content
    terms = LIBRARY.compiled(offer.output_schema, key=key(contract, "output"))
    if type(content) is str:
        meant = read(content)
        if meant is not None and terms.accepts(meant):
            return replace(result, result=meant)
        if terms.accepts({"output": content}):
            return result
        if type(meant) is dict and not terms.accepts(content):
            content = meant
    if terms.accepts(content):
        return result
    found = misfits(terms, content, hidden=is_private(offer, contract))
    message = f"the result does not fit the output schema that was promised: {_first(found)}"
    return Fault(kind=Kind.CONTRACT, message=message, field="payload", facts=facts(contract, found))


def unwrapped(result: Result) -> Result:
    """A result whose agent had to wrap a value into an object, without the object: `value_in` names the field, or, if
    empty, says that there is none."""
    name, content = result.value_in, result.result
    if (
        type(name) is not str or type(content) is not dict or result.envelope is not None
    ):  # encrypted: only the two agents can read it
        return result
    return replace(result, result=content.get(name))


def read(text: str) -> Any:
    """The JSON in this text, or None."""
    try:
        return guard.check(text.encode(), TEXT_LIMITS)
    except RemoteProtocolError:
        return None


def is_private(offer: Offer, contract: Contract | None) -> bool:
    """Whether even the names in a payload are private: errors show them unencrypted, and the audit record keeps
    them."""
    return offer.pii or (contract is not None and contract.encrypted)


def misfits(terms: Compiled, content: Any, *, hidden: bool) -> list[dict[str, str]]:
    """What does not fit, by place."""
    found = terms.faults(content, hidden=hidden)
    return [{"pointer": one.pointer, "what": one.what, "rule": one.rule} for one in found]


def _first(found: list[dict[str, str]]) -> str:
    """The first misfit as a text with its place and no value."""
    return f"{found[0]['pointer'] or 'the whole'}: {found[0]['what']}" if found else "something"


def key(contract: Contract | None, side: str) -> bytes | None:
    """The key under which a compiled schema is found without looking at the schema."""
    return None if contract is None else f"{contract.id}/{side}".encode()


def facts(contract: Contract | None, found: list[dict[str, str]]) -> dict[str, Any]:
    return {"faults": found, **({"contract_id": contract.id} if contract is not None else {})}
