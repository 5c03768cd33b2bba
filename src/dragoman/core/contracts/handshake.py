"""Two agents agree on a contract: five steps, each in one commit.

    source                       hub                                                      target
    ------                       ---                                                      ------
    1 `ShakeHands`     ───▶      2 target, intent, versions, domains, grants, schemas
                                 3 a question, asked of the target           ─────▶       the proposal
                                 5 the contract is in force                  ◀─────       4 `AnswerHandshake`
    the answer         ◀───        both get it                               ─────▶       the contract

All of it must happen within `PATIENCE`. The answer to the source names the contract, or says why there is none. An
agent whose protocol has no handshake agreed to its terms when it declared them.

The contracts of a removed agent end with it, and with them what depends on them:

    a handshake in which it is asked     fails, and the source gets the fault
    a task under one of its contracts    fails, and the caller gets the fault: no other agent agreed to do it

There may be thousands, so one unit ends a page of contracts and of tasks under them, and enqueues the next; the first
page goes with the agent itself. If the hub stops in between, the next one finds the other contracts when it starts
(`Recovered.parted`), and the other tasks at their wake times. Meanwhile they are of no use: a contract is in force only
between the two agents that agreed (`terms.between_the_same`).
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.agreements import domain_policy
from dragoman.core.agreements.domain_policy import domain_of
from dragoman.core.agreements.terms import between_the_same, still_agreed
from dragoman.core.commands import AnswerHandshake, EndContract, EndContractsOf, RenewContract, RotateKey, ShakeHands
from dragoman.core.delivery.outbox import NOBODY, await_answer, offer_answer, put_on_its_way, settle
from dragoman.core.ids import ADMIN, SECOND, AgentId, DeliveryId, Instant, QuestionId, TaskId, rfc3339
from dragoman.core.lookups import Bound, Lane, PutTo, QuestionById, Ready, Terms
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import Contract, Party, Secret, Standing, intents_of, terms_for
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.tasks import Asking, Question, QuestionDetails, QuestionStatus, Status, Task
from dragoman.core.protocol_capabilities import SHAKES_HANDS
from dragoman.core.routing.routes import route_of
from dragoman.core.tasks.outcome import end, end_children
from dragoman.core.tasks.questions import question_id
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.wire.schema import compatibility

PATIENCE = 5 * SECOND


def shake_hands(work: Work, command: ShakeHands) -> Question:
    id = question_id(f"{command.principal}/{command.request_id}")
    known = work.one(QuestionById(id))
    if known is not None:
        if known.details.digest != command.digest:
            raise refuse(
                Kind.MISMATCH,
                "this message id was used before with other content",
                next="use a new id for a new message",
                field="message_id",
            )
        return known
    target, offer = served(work, command)
    encrypt = domain_policy.check(work, command.domain, domain_of(target), command.intent)
    check_grants(command, offer)
    check_schemas(command, offer)
    former = renewed(work, command)
    contract = drafted(work, command, target, offer, encrypt=encrypt, former=former)
    question = Question(
        id=id,
        task=None,
        agent=command.principal,
        question=f"{command.principal} wants to ask {target.id} for {command.intent}",
        created_at=work.now,
        status=QuestionStatus.WITH_AGENT,
        wake_at=Instant(work.now + PATIENCE),
        request_id=command.request_id,
        blocking=False,
        details=QuestionDetails(
            digest=command.digest,
            contract=contract,
            awaited=command.awaited,
            former=None if former is None else former.id,
            same_key=contract.secret is not None and command.secret is None,
            correlation_id=command.correlation_id,
        ),
        about=Asking.HANDSHAKE,
        asked_of=target.id,
    )
    if command.awaited is not None:
        await_answer(work, command.principal, command.awaited)
    if target.protocol not in SHAKES_HANDS:
        return agree(work, question, None)
    proposal = DeliveryId(work.mint())
    question = replace(question, details=replace(question.details, proposal=proposal))
    work.put(question)
    tell(work, target.id, MessageKind.PROPOSAL, question=question.id, id=proposal)
    return question


def served(work: Work, command: ShakeHands) -> tuple[Agent, Offer]:
    target = work.agent(command.target)
    if target is None or target.id == command.principal:
        raise refuse(
            Kind.NOT_FOUND,
            f"there is no other agent {command.target!r}",
            next="discover who serves the intent",
            field="target_agent_id",
        )
    offer = terms_for(target, command.intent)
    if offer is None:
        intents = sorted(intents_of(target))
        raise refuse(
            Kind.UNSUPPORTED_WORK,
            f"agent {target.id!r} does not serve {command.intent!r}",
            next=f"it serves {', '.join(intents) or 'nothing'}",
            field="requested_intent",
            work_type_requested=command.intent,
            supported_types=intents,
        )
    actual = target.version or "1.0.0"
    if command.target_version is not None and major(command.target_version) != major(actual):
        raise refuse(
            Kind.UNSUPPORTED_VERSION,
            f"agent {target.id!r} is version {actual}, not {command.target_version}",
            next="they are not compatible",
            field="target_version",
            supported_versions=[actual],
        )
    return target, offer


def major(version: str) -> str:
    return version.partition(".")[0]


def check_grants(command: ShakeHands, offer: Offer) -> None:
    missing = sorted(set(offer.required_capabilities) - set(command.granted))
    if missing:
        raise refuse(
            Kind.UNAUTHENTICATED,
            f"your token lacks {', '.join(missing)}, which {offer.intent} requires",
            next="ask for it at /auth/token",
            field="security.auth_token",
            missing=missing,
        )


def check_schemas(command: ShakeHands, offer: Offer) -> None:
    """What the source will send must fit what the target takes, and the reverse for the answer."""
    for field, taker, giver in (
        ("request_schema", offer.input_schema, command.request_schema),
        ("response_schema", command.response_schema, offer.output_schema),
    ):
        if taker is None or giver is None:
            continue
        verdict = compatibility.accepts(taker, giver)
        if verdict.answer is not compatibility.Answer.YES:
            details = {**verdict.details(), "expected_schema": taker, "received_schema": giver}
            raise refuse(
                Kind.INVALID,
                f"the {field.replace('_', ' ')} does not fit what {command.target} declared",
                next="misfits say where and why",
                field=field,
                **details,
            )


def renewed(work: Work, command: ShakeHands) -> Contract | None:
    if command.collaboration is None:
        return None
    current = in_force(work, command.collaboration, command.principal)
    if (*current.parties, current.intent) != (command.principal, command.target, command.intent):
        raise refuse(
            Kind.CONTRACT,
            "that collaboration is about something else",
            next="shake hands again",
            field="collaboration_id",
        )
    return current


def drafted(
    work: Work, command: ShakeHands, target: Agent, offer: Offer, *, encrypt: bool, former: Contract | None
) -> Contract:
    """The contract that is in force if the target agrees. Personal data is always encrypted (a2acp-D13)."""
    if command.end_to_end and target.protocol not in SHAKES_HANDS:
        raise refuse(
            Kind.FORBIDDEN,
            f"agent {target.id!r} speaks {target.protocol} and cannot decrypt",
            next="shake hands without mode, and the hub does",
            field="mode",
            protocol=target.protocol,
        )
    encrypted = encrypt or command.encrypt or offer.pii or command.end_to_end
    secret = command.secret
    if secret is None and former is not None and former.end_to_end == command.end_to_end:
        secret = former.secret  # in the other mode there is none: the hub has no key of two agents
    if encrypted and secret is None:
        raise refuse(
            Kind.FORBIDDEN,
            "what passes here must be encrypted",
            next="send your public_key with the handshake",
            field="public_key",
            pii=offer.pii,
        )
    return Contract(
        id=f"contract-{work.mint()}",
        collaboration=former.collaboration if former is not None else f"collaboration-{work.mint()}",
        source=Party(command.principal, command.domain, command.version),
        target=Party(target.id, domain_of(target), target.version or "1.0.0"),
        offer=offer,
        created_at=work.now
        if former is None
        else max(work.now, Instant(former.created_at + 1)),  # `Terms` has an order
        expires_at=Instant(work.now + work.rules.contract_lasts),
        since=work.now,
        encrypted=encrypted,
        end_to_end=command.end_to_end,
        secret=secret if encrypted else None,
        sandbox=target.sandbox,
    )


def answer_handshake(work: Work, command: AnswerHandshake) -> Question:
    question = work.one(QuestionById(command.question))
    if question is None or question.about is not Asking.HANDSHAKE or question.asked_of != command.principal:
        raise refuse(Kind.NOT_FOUND, "no such handshake, or it was not put to you", field="correlation_id")
    if question.status is not QuestionStatus.WITH_AGENT:
        raise refuse(
            Kind.CONFLICT, "the handshake is over", next="nobody waits for this answer", status=question.status.value
        )
    if not command.accepted:
        reason = command.reason or "no reason given"
        facts = {"reason": reason, "agent_id": command.principal}
        fault = Fault(kind=Kind.CONTRACT, message=f"{command.principal} declined: {reason}", facts=facts)
        return failed(work, question, fault)
    question = agree(work, question, command.public_key)
    if "fault" in question.answer:  # both get the fault: a target that said yes must not take itself for bound
        raise Refused(msgspec.convert(question.answer["fault"], Fault), keep=True)
    return question


def agree(work: Work, question: Question, public_key: str | None) -> Question:
    """The contract is in force, and both agents know it."""
    contract = question.details.contract
    assert contract is not None
    if not between_the_same(work, contract):
        fault = new_fault(Kind.CONTRACT, "one of the two was removed meanwhile", next="there is no contract")
        return failed(work, question, fault)
    former = question.details.former
    old = None if former is None else work.contract(former)
    if former is not None and (old is None or old.standing is not Standing.ACTIVE):
        standing = "forgotten" if old is None else old.standing.value
        message = f"the contract to renew is {standing} meanwhile"
        fault = new_fault(Kind.CONTRACT, message, next="shake hands for a new one", facts={"standing": standing})
        return failed(work, question, fault)
    if old is not None and question.details.same_key:
        contract = replace(contract, secret=old.secret)  # it may have been rotated since
    if contract.secret is not None and public_key is not None:
        changes = contract.end_to_end and contract.secret.target_key not in (None, public_key)
        kid = work.mint() if changes else contract.secret.kid  # between the two alone, that is another key
        secret = replace(contract.secret, kid=kid, target_key=public_key)
        contract = replace(contract, secret=secret)
    if contract.secret is not None and contract.secret.target_key is None and needs_key(work, contract):
        fault = Fault(kind=Kind.FORBIDDEN, message="the target sent no public_key, and what passes must be encrypted")
        return failed(work, question, fault)
    contract = replace(contract, handshake=question.id, since=work.now)
    work.put(contract)
    if old is not None:
        reason = f"renewed as {contract.id}"
        over = {"standing": Standing.SUPERSEDED, "since": work.now, "by": question.agent, "reason": reason}
        work.put(replace(old, **over))
    question = conclude(work, question, QuestionStatus.ANSWERED, {"contract_id": contract.id})
    tell(work, contract.target.agent, MessageKind.CONTRACT, contract=contract.id)
    return question


def needs_key(work: Work, contract: Contract) -> bool:
    """Whether the target encrypts for itself; for an agent of another protocol the hub does."""
    target = work.agent(contract.target.agent)
    return target is not None and target.protocol in SHAKES_HANDS


def failed(work: Work, question: Question, fault: Fault) -> Question:
    return conclude(work, question, QuestionStatus.ANSWERED, {"fault": msgspec.to_builtins(fault)})


def too_late(work: Work, question: Question) -> None:
    """The target did not answer in time."""
    message = f"{question.asked_of} did not answer the handshake within {PATIENCE // SECOND} s"
    facts = {"agent_id": question.asked_of}
    failed(work, question, new_fault(Kind.TIMEOUT, message, next="try again", retryable=True, facts=facts))


def conclude(work: Work, question: Question, status: QuestionStatus, answer: dict[str, Any]) -> Question:
    """End the handshake: the source gets the answer, and a proposal that the target has not read is withdrawn."""
    question = replace(question, status=status, answer=answer, answered_at=work.now, wake_at=None)
    work.put(question)
    if question.asked_of is not None:
        for proposal in work.find(Lane(TaskId(question.id), question.asked_of)):
            settle(work, proposal)
    offer_answer(work, question)
    return question


# -- afterwards ----------------------------------------------------------------------------------------------------


def newest(work: Work, collaboration: str, principal: AgentId) -> tuple[Contract, Standing]:
    """The current contract of a collaboration, for one of its parties or a person."""
    found = work.find(Terms(collaboration))
    if not found or principal not in (*found[0].parties, ADMIN):
        raise refuse(Kind.NOT_FOUND, "no such collaboration, or not yours", field="collaboration_id")
    standing = found[0].at(work.now)
    if principal != ADMIN and not between_the_same(work, found[0]):
        standing = Standing.TERMINATED
    return found[0], standing


def in_force(work: Work, collaboration: str, principal: AgentId) -> Contract:
    contract, standing = newest(work, collaboration, principal)
    if standing is not Standing.ACTIVE:
        raise refuse(
            Kind.CONTRACT,
            f"the contract is {standing.value}",
            next="shake hands for a new one",
            standing=standing.value,
        )
    return contract


def end_contract(work: Work, command: EndContract) -> Contract:
    """End a collaboration, with its earlier contracts that are still honoured after a renewal."""
    contract, standing = newest(work, command.collaboration, command.principal)
    if standing is not Standing.ACTIVE:
        raise refuse(Kind.CONFLICT, f"the contract is already {standing.value}", standing=standing.value)
    ended = {"standing": Standing.TERMINATED, "since": work.now, "by": command.principal, "reason": command.reason}
    for former in superseded(work, command.collaboration):
        work.put(replace(former, **ended))
    contract = replace(contract, **ended)
    work.put(contract)
    for party in contract.parties:
        if party != command.principal:
            tell(work, party, MessageKind.CONTRACT, contract=contract.id)
    return contract


def renew_contract(work: Work, command: RenewContract) -> Contract:
    """A person lets a contract end later. Its id and its terms stay, so no agent has to agree again; both learn the new
    end. A contract that is over never comes back."""
    contract, standing = newest(work, command.collaboration, command.principal)
    if standing is Standing.ACTIVE and not between_the_same(work, contract):
        standing = Standing.TERMINATED
    if standing is not Standing.ACTIVE:
        what = f"the contract is {standing.value} and does not come back; {contract.source.agent} must make a new one"
        raise refuse(Kind.CONFLICT, what, standing=standing.value)
    lasts = work.rules.contract_lasts if command.lasts is None else command.lasts
    until = Instant(work.now + lasts)
    if until <= contract.expires_at:
        what = f"the contract lasts until {rfc3339(contract.expires_at)} already; renew it for longer"
        raise refuse(Kind.INVALID, what, field="hours", expires_at=rfc3339(contract.expires_at))
    contract = replace(contract, expires_at=until)
    work.put(contract)
    for party in contract.parties:
        tell(work, party, MessageKind.CONTRACT, contract=contract.id)
    return contract


def superseded(work: Work, collaboration: str) -> list[Contract]:
    """The earlier contracts of a collaboration that are still honoured, the newest first."""
    page = Terms(collaboration)
    while True:
        rows = work.find(page)
        honoured = [row for row in rows if row.standing is Standing.SUPERSEDED and row.honoured(work.now)]
        if len(rows) < page.limit or not rows[-1].honoured(work.now):
            return honoured
        page = Terms(collaboration, page.limit * 4)


def rotate_key(work: Work, command: RotateKey) -> Contract:
    contract = in_force(work, command.collaboration, command.principal)
    if contract.secret is None or command.secret.kid == contract.secret.kid:
        raise refuse(Kind.CONTRACT, "the contract has no key to replace", field="public_key")
    if contract.end_to_end != (command.secret.locked is None):
        raise refuse(Kind.CONFLICT, "the contract was renewed in another mode meanwhile", next="rotate_key again")
    old = contract.secret
    secret = Secret(
        kid=command.secret.kid,
        locked=command.secret.locked,
        source_key=command.secret.source_key or old.source_key,
        target_key=command.secret.target_key or old.target_key,
    )
    contract = replace(contract, secret=secret, former=old, rotated_at=work.now)
    work.put(contract)
    tell(work, contract.other(command.principal), MessageKind.CONTRACT, contract=contract.id)
    return contract


def tell(
    work: Work,
    receiver: AgentId,
    kind: MessageKind,
    *,
    question: QuestionId | None = None,
    contract: str | None = None,
    id: DeliveryId | None = None,
) -> None:
    """Deliver a notice of a question or a contract, to an agent whose protocol has one."""
    agent = work.agent(receiver)
    if receiver in NOBODY or agent is None or agent.protocol not in SHAKES_HANDS:
        return
    lane_id = TaskId(question or contract or "")
    lane = work.find(Lane(lane_id, receiver))
    delivery = Delivery(
        id=id or DeliveryId(work.mint()), task=lane_id, receiver=receiver, seq=lane[-1].seq + 1 if lane else 1,
        kind=kind, event=0, rank=work.now, created_at=work.now, head=not lane, question=question, contract=contract,
    )  # fmt: skip
    put_on_its_way(work, delivery, lane)


PAGE = 32
"""Contracts that one unit ends: about ten milliseconds."""


def end_contracts_of(work: Work, command: EndContractsOf) -> int:
    page = work.find(Bound(command.agent, work.now, command.until, PAGE))
    work.together([Lane(TaskId(contract.id), contract.other(command.agent)) for contract in page])
    reason = f"{command.agent} was removed"
    for contract in page:
        over = {"standing": Standing.TERMINATED, "since": work.now, "by": command.by, "reason": reason}
        work.put(replace(contract, **over))
        work.audit(principal=command.by, action="contract.end", subject=contract.collaboration, reason=reason)
        tell(work, contract.other(command.agent), MessageKind.CONTRACT, contract=contract.id)
    if max(len(page), end_what_waits_for(work, command.agent)) == PAGE:
        work.ask_afterwards(command)
    return len(page)


def end_what_waits_for(work: Work, agent: AgentId) -> int:
    """End a page of the queued tasks for a removed agent, under contracts that ended with it."""
    queues = [queue for queue in work.queues() if route_of(queue).pinned == agent]
    waiting = (task for queue in queues for task in work.find(Ready(queue, PAGE)) if not still_agreed(work, task))
    page = list(islice(waiting, PAGE))
    for task in page:
        part(work, task)
    return len(page)


def end_handshakes_with(work: Work, agent: AgentId) -> None:
    """The sources that wait for its answer get the fault that they would get if they asked now."""
    fault = new_fault(
        Kind.NOT_FOUND,
        f"{agent} was removed before it answered",
        next="discover who else serves the intent",
        field="target_agent_id",
        facts={"agent_id": agent},
    )
    for question in work.find(PutTo(agent)):
        if question.about is Asking.HANDSHAKE:
            failed(work, question, fault)


def is_bound_to(work: Work, task: Task, agent: AgentId) -> bool:
    """Whether a task is under a contract with this agent: then no other agent may do it."""
    contract = None if task.agreement.contract is None else work.contract(task.agreement.contract)
    return contract is not None and contract.target.agent == agent


def part(work: Work, task: Task) -> None:
    """End a task that no agent may do any more: a new agent under the same name did not agree to the terms."""
    facts = {"contract_id": task.agreement.contract, "standing": Standing.TERMINATED.value}
    what = "one of the two who agreed was removed, and nobody else may do it"
    fault = new_fault(Kind.CONTRACT, what, next="shake hands for a new contract", facts=facts)
    task = end(work, task, Status.FAILED, fault=fault)
    end_children(work, task, "failed")
