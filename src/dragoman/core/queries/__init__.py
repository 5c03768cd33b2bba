"""Read models: tasks, agents, questions, dead letters and the audit record as people see them.

They are pure functions from rows to values, which the API, the command line and the dashboard share, so that all three
show the same. Below are the rows of `core`; above is the code that reads the store. Nothing here reads the store
itself.

    tasks.py        a task, its events, its history
    transcript.py   input, whole output and result of a task, from its events
    people.py       agents, questions, dead letters, audit
    why.py          why a task is where it is, and what to do
    obstacles.py    what keeps an agent from a task
    trace.py        all that came of one request, step by step
"""

from dragoman.core.queries.people import (
    AgentOut,
    AgentStatus,
    AuditOut,
    BreakerOut,
    DeadLetterOut,
    QuestionOut,
    agent_out,
    agent_status,
    audit_out,
    dead_letter_out,
    question_out,
)
from dragoman.core.queries.tasks import (
    ErrorOut,
    EventOut,
    LogLine,
    TaskOut,
    error_out,
    event_out,
    is_hidden,
    log_line,
    task_out,
)
from dragoman.core.queries.transcript import Account, Transcript
from dragoman.core.queries.why import AgentFacts, Candidate, Reason, WhyOut, why

__all__ = [
    "Account", "AgentFacts", "AgentOut", "AgentStatus", "AuditOut", "BreakerOut", "Candidate", "DeadLetterOut",
    "ErrorOut", "EventOut", "LogLine", "QuestionOut", "Reason", "TaskOut", "Transcript", "WhyOut", "agent_out",
    "agent_status", "audit_out", "dead_letter_out", "error_out", "event_out", "is_hidden", "log_line", "question_out",
    "task_out", "why",
]  # fmt: skip
