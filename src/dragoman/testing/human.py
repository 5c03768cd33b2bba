"""A scripted person: answers the agents' questions as the test says, over the management API as people do.

Answers for certain questions (`to=`) go before those for any; of several that fit, the newest.
Questions for which there is none stay open until there is one, or until their time is over.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragoman.core.ids import QuestionId
from dragoman.core.model.tasks import Question as Row
from dragoman.core.model.tasks import QuestionStatus
from dragoman.sdk.errors import Conflict, DragomanError, NotFound
from dragoman.sdk.events import Question
from dragoman.testing.loop import Misused

if TYPE_CHECKING:
    from dragoman.testing.environment import Environment
    from dragoman.testing.loop import LoopThread


class Script:
    """The answers to give, and to which questions."""

    def __init__(self, answers: tuple[Any, ...], to: str | re.Pattern[str] | None) -> None:
        self._answers = list(answers)
        self.to = to

    def fits(self, text: str) -> bool:
        if self.to is None:
            return True
        return self.to in text if isinstance(self.to, str) else self.to.search(text) is not None

    def next(self, question: Question) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return answer(question) if callable(answer) else answer


class Human:
    def __init__(self, thread: LoopThread, environment: Environment) -> None:
        self._thread = thread
        self._environment = environment
        self._scripts: list[Script] = []
        self._rows: dict[QuestionId, Row] = {}
        self._replying: dict[QuestionId, asyncio.Task[None]] = {}

    def answers(self, *answers: Any | Callable[[Question], Any], to: str | re.Pattern[str] | None = None) -> None:
        """The person's answers from now on, also to questions that wait already: `answers("no")`.

        Several answers are given in turn, one for each question, and the last to all after that. With `to`, only to
        questions that contain this text, or match this pattern. A function gets the question and returns the answer.
        """
        if not answers:
            raise Misused('say what the person answers: hub.human.answers("no")')
        self._scripts.append(Script(answers, to))
        self._thread.do(self._reply_to_open())
        self._environment.raise_noted()

    def silence(self) -> None:
        """Answer nothing from now on."""
        self._scripts.clear()

    @property
    def asked(self) -> list[Question]:
        """The questions that people were asked so far, in order; `question` is the text, `answer` the answer."""
        return [_question_of(row) for row in list(self._rows.values())]

    # --- on the hub's loop ---

    @property
    def is_answering(self) -> bool:
        """Whether the person is about to answer."""
        return bool(self._replying)

    def on_question(self, row: Row) -> None:
        if row.status is QuestionStatus.OPEN or row.id in self._rows:
            self._rows[row.id] = row
            self._reply_if_scripted(row)

    async def _reply_to_open(self) -> None:
        for row in list(self._rows.values()):
            self._reply_if_scripted(row)
        await asyncio.gather(*self._replying.values())

    def _reply_if_scripted(self, row: Row) -> None:
        if row.status is not QuestionStatus.OPEN or row.id in self._replying:
            return
        fitting = [script for script in self._scripts if script.fits(row.question)]
        if fitting:
            script = max(fitting, key=lambda script: (script.to is not None, self._scripts.index(script)))
            reply = asyncio.get_running_loop().create_task(self._reply(row, script))
            self._replying[row.id] = reply
            reply.add_done_callback(lambda _: self._replying.pop(row.id, None))

    async def _reply(self, row: Row, script: Script) -> None:
        try:
            answer = script.next(_question_of(row))
            await self._environment.people.answer(row.id, answer)
        except (Conflict, NotFound):
            pass  # the question expired, or was answered before
        except DragomanError as error:
            self._environment.note_error(Misused(f"the hub refused the person's answer to {row.question!r}: {error}"))
        except Exception as error:
            self._environment.note_error(Misused(f"the script failed for the question {row.question!r}: {error!r}"))


def _question_of(row: Row) -> Question:
    return Question(
        id=row.id,
        task_id=row.task or "",
        agent=row.agent,
        question=row.question,
        options=row.options,
        status=row.status.value,
        answer=row.answer,
    )
