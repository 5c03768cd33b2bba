"""The hub: a table from each command to the decision that answers it.

Above: the intake, which calls `decide`. Below: all of the core. `decide` runs one command in a unit of work. It never
waits: if a row is missing, it raises `NotLoaded`, and the intake runs it again. It returns an outcome or raises
`Refused`; both are audited. Decisions themselves live in the packages below, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.core import clock, people
from dragoman.core.agents import links, registry, status
from dragoman.core.commands import (
    Acknowledge,
    AddAgent,
    AdmitGuest,
    Answer,
    AnswerHandover,
    AnswerHandshake,
    AskHelp,
    AskPerson,
    AwaitReturn,
    Beat,
    Cancel,
    ChangeState,
    Claim,
    ClearOut,
    CloseLink,
    Command,
    CountRefusals,
    Discard,
    EndContract,
    EndContractsOf,
    Finish,
    Forget,
    GiveHelp,
    HandOver,
    KeepSeries,
    NoteRead,
    NoteRefusal,
    OpenLink,
    Outcome,
    PaceLink,
    PartLink,
    Pause,
    PauseAgent,
    Reassign,
    Redrive,
    RefillLink,
    RegisterAgent,
    RemoveAgent,
    RenewContract,
    ReportError,
    ReportFault,
    ReportProgress,
    ReportStatus,
    Resume,
    ResumeAgent,
    Retry,
    RevokeToken,
    RotateKey,
    RotateToken,
    SetDomainPolicy,
    ShakeHands,
    Submit,
    Sweep,
    Tell,
    TellAgain,
    Unanswered,
    WaitAgain,
    Wake,
    WriteLog,
)
from dragoman.core.commands.people import (
    AddPerson,
    EndSessions,
    LogIn,
    LogInByProvider,
    OfferLogin,
    RecordLogin,
    RemovePerson,
    SetPersonRole,
    SetPersonToken,
)
from dragoman.core.contracts import handshake
from dragoman.core.delivery import direct_messages as direct_messages
from dragoman.core.delivery import outbox, redelivery
from dragoman.core.ids import HUB
from dragoman.core.lookups import DeliveryById, QuestionById
from dragoman.core.model.tasks import Asking, Question, Status, Task
from dragoman.core.policy import refusals, replay
from dragoman.core.policy.chain import check, count
from dragoman.core.policy.replay import note, receipt
from dragoman.core.routing import dispatch
from dragoman.core.state import approval, changes
from dragoman.core.tasks import (
    assistance,
    control,
    forgetting,
    handover,
    outcome,
    progress,
    questions,
    results,
    submit,
)
from dragoman.core.work import NotLoaded, Reactions, Work
from dragoman.messages.faults import Fault, Refused


def wake(work: Work, command: Wake) -> None:
    task = None if command.task is None else work.task(command.task)
    if task is not None and not outcome.is_hopeless(work, task):
        clock.task_woke(work, task)
    if command.delivery is not None and (delivery := work.one(DeliveryById(command.delivery))) is not None:
        redelivery.lease_expired(work, delivery)
    if command.agent is not None and (agent := work.agent(command.agent)) is not None:
        registry.agent_woke(work, agent)
    if command.agent == HUB:
        status.totals_lapse(work)
    if command.question is not None and (question := work.one(QuestionById(command.question))) is not None:
        questions.expire(work, question)


def note_refusal(work: Work, command: NoteRefusal) -> int:
    return refusals.record(
        work,
        command.fault,
        principal=command.person or command.principal,
        action=command.what,
        protocol=command.protocol,
        subject=command.about,
        address=command.address,
    )


def record_refusal(work: Work, command: Command, action: str, refusal: Refused) -> None:
    try:
        refusals.record(
            work,
            refusal.fault,
            principal=command.person or command.principal,
            action=action,
            protocol=command.protocol,
            subject=command.subject,
            task=getattr(command, "task_id", None) if refusal.keep else None,
        )
    except NotLoaded:  # the decision runs again from its beginning
        work.rollback()
        raise


def count_refusals(work: Work, command: CountRefusals) -> int:
    return refusals.record_counts(work)


def note_read(work: Work, command: NoteRead) -> int | None:
    if command.message_id is not None:
        noted = receipt(work, command.principal, command.message_id, command.digest)
        if noted is not None:
            return int(noted)
        note(work, command.principal, command.message_id, command.digest, str(command.count))
    work.audit(principal=command.principal, action=command.what, protocol=command.protocol, subject=command.about)
    return None


def keep_series(work: Work, command: KeepSeries) -> int:
    for row in command.rows:
        work.put(row)
    return len(command.rows)


def end_not_admitted(work: Work, task: Task, fault: Fault) -> Task:
    return outcome.end(work, task, Status.FAILED, fault=fault)


def question_closed(work: Work, question: Question) -> None:
    if question.about is Asking.HANDSHAKE:
        handshake.too_late(work, question)
    else:
        handover.question_closed(work, question)


REACTIONS = Reactions(
    not_admitted=end_not_admitted,
    task_ended=assistance.helped,
    question_closed=question_closed,
)


DECISIONS: dict[type[Command], Callable[[Work, Any], Outcome]] = {
    AddAgent: registry.add,
    RemoveAgent: registry.remove,
    PauseAgent: registry.pause,
    ResumeAgent: registry.resume,
    RotateToken: registry.rotate_token,
    RevokeToken: registry.revoke_token,
    RegisterAgent: registry.register,
    AddPerson: people.add,
    RemovePerson: people.remove,
    SetPersonToken: people.set_token,
    OfferLogin: people.offer_login,
    LogIn: people.log_in,
    LogInByProvider: people.log_in_by_provider,
    RecordLogin: people.record_login,
    SetPersonRole: people.set_role,
    EndSessions: people.end_sessions,
    AdmitGuest: registry.admit,
    OpenLink: links.open_link,
    RefillLink: links.refill_link,
    PaceLink: links.pace_link,
    PartLink: links.part_link,
    CloseLink: links.close_link,
    Acknowledge: outbox.acknowledge,
    TellAgain: submit.tell_again,
    Submit: submit.submit,
    Claim: dispatch.claim,
    ReportProgress: progress.report_progress,
    WriteLog: progress.write_log,
    Finish: results.finish,
    ReportFault: results.report_fault,
    Cancel: control.cancel,
    Pause: control.pause,
    Resume: control.resume,
    Retry: control.retry,
    Reassign: control.reassign,
    AskPerson: questions.ask_person,
    Answer: approval.answer,
    ShakeHands: handshake.shake_hands,
    AnswerHandshake: handshake.answer_handshake,
    EndContract: handshake.end_contract,
    RenewContract: handshake.renew_contract,
    EndContractsOf: handshake.end_contracts_of,
    RotateKey: handshake.rotate_key,
    SetDomainPolicy: approval.set_domain_policy,
    Tell: direct_messages.tell,
    AskHelp: assistance.ask_help,
    GiveHelp: assistance.give_help,
    Unanswered: handover.unanswered,
    HandOver: handover.hand_over,
    AnswerHandover: handover.answer_handover,
    Sweep: direct_messages.sweep,
    WaitAgain: redelivery.renew_waits,
    AwaitReturn: clock.await_return,
    Forget: forgetting.forget,
    ClearOut: direct_messages.clear_out,
    Beat: status.beat,
    ReportStatus: status.report_status,
    ReportError: status.report_error,
    ChangeState: changes.change_state,
    Redrive: control.redrive,
    Discard: control.discard,
    Wake: wake,
    NoteRefusal: note_refusal,
    CountRefusals: count_refusals,
    NoteRead: note_read,
    KeepSeries: keep_series,
}


NO_SIGN = frozenset(
    {
        AwaitReturn,
        ClearOut,
        CloseLink,
        CountRefusals,
        EndContractsOf,
        PaceLink,
        PartLink,
        RefillLink,
        Unanswered,
        WaitAgain,
        Wake,
        Sweep,
        Forget,
        KeepSeries,
        NoteRefusal,
    }
)
"""Commands that are no sign of life of their principal: the hub itself issued them, or their sender is not proven."""


def decide(work: Work, command: Command) -> Outcome:
    """The outcome of a command; its changes are in `work`. Raises `Refused`, or `NotLoaded` to be run again."""
    work.begin()
    try:
        check(work, command)
        if command.principal in work.directory.conversing and type(command) not in NO_SIGN:
            status.note_sign_of_life(work, command.principal)
        if command.message is not None:
            replay.one_content(work, *command.message)
        if command.seen is not None:
            replay.first_time(work, command)
        if command.sealed_by is not None:
            replay.sealed_once(work, command.sealed_by)
        result = DECISIONS[type(command)](work, command)
    except Refused as refusal:
        if not refusal.keep:
            work.rollback()
            count(work, command)
        if command.action is not None:
            record_refusal(work, command, command.action, refusal)
        raise
    except BaseException:
        work.rollback()
        raise
    if command.recorded:
        work.audit(
            principal=command.person or command.principal,
            action=command.action or "",
            protocol=command.protocol,
            subject=command.subject or getattr(result, "id", None),
            digest=getattr(command, "digest", None),
        )
    return result
