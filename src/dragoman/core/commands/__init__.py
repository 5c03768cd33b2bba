"""What can be asked of the hub: a closed list of values.

Bindings make them from wire messages, the API from HTTP requests, the engine from clocks and broken links. Each is
answered by exactly one decision (`core.hub` has the table) with an outcome or a refusal. `principal` is who asks, as
their credential says; no field of a message can change it (all-D1).

`action` is the verb in the audit record; commands without one are the hub's own housekeeping.
"""

from __future__ import annotations

from dragoman.core.commands.agents import (
    AddAgent,
    AdmitGuest,
    Beat,
    RegisterAgent,
    RemoveAgent,
    ReportError,
    ReportStatus,
    RevokeToken,
    RotateToken,
    Severity,
)
from dragoman.core.commands.base import Command, Outcome
from dragoman.core.commands.contracts import AnswerHandshake, EndContract, RotateKey, SetDomainPolicy, ShakeHands
from dragoman.core.commands.conversation import AnswerHandover, AskHelp, GiveHelp, Handing, HandOver, HelpVerdict, Tell
from dragoman.core.commands.deadletters import Discard, Redrive
from dragoman.core.commands.housekeeping import (
    AwaitReturn,
    ClearOut,
    CountRefusals,
    EndContractsOf,
    Forget,
    NoteRead,
    NoteRefusal,
    Past,
    Sweep,
    Unanswered,
    WaitAnew,
    Wake,
)
from dragoman.core.commands.links import Acknowledge, CloseLink, OpenLink, PaceLink, PartLink, RefillLink, TellAgain
from dragoman.core.commands.state import ChangeState
from dragoman.core.commands.tasks import (
    AboutTask,
    Agreement,
    Answer,
    AskPerson,
    Cancel,
    Claim,
    Finish,
    Lineage,
    Pause,
    Reply,
    ReportFault,
    ReportProgress,
    Resume,
    Retry,
    Routing,
    Span,
    Submit,
    Timing,
    WriteLog,
)

__all__ = (
    "AboutTask",
    "Acknowledge",
    "AddAgent",
    "AdmitGuest",
    "Agreement",
    "Answer",
    "AnswerHandover",
    "AnswerHandshake",
    "AskHelp",
    "AskPerson",
    "AwaitReturn",
    "Beat",
    "Cancel",
    "ChangeState",
    "Claim",
    "ClearOut",
    "CloseLink",
    "Command",
    "CountRefusals",
    "Discard",
    "EndContract",
    "EndContractsOf",
    "Finish",
    "Forget",
    "GiveHelp",
    "HandOver",
    "Handing",
    "HelpVerdict",
    "Lineage",
    "LogEntry",
    "NoteRead",
    "NoteRefusal",
    "OpenLink",
    "Outcome",
    "PaceLink",
    "PartLink",
    "Past",
    "Pause",
    "Redrive",
    "RefillLink",
    "RegisterAgent",
    "RemoveAgent",
    "Reply",
    "ReportError",
    "ReportFault",
    "ReportProgress",
    "ReportStatus",
    "Resume",
    "Retry",
    "RevokeToken",
    "RotateKey",
    "RotateToken",
    "Routing",
    "SetDomainPolicy",
    "Severity",
    "ShakeHands",
    "Span",
    "Submit",
    "Sweep",
    "Tell",
    "TellAgain",
    "Timing",
    "Unanswered",
    "WaitAnew",
    "Wake",
    "WriteLog",
)
