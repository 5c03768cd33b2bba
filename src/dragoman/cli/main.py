"""The `dragoman` command: the list of commands, and how each of them ends.

A command is a module path here; it is imported when it is called. So the list carries the help texts itself: `dragoman
--help` imports no command.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from dragoman.cli.errors import BETWEEN, CommandError, Exit

SERVE, WORK, LOOK = (Group(name, sort_key=place) for place, name in enumerate(("Run a hub", "Work", "Look after it")))

COMMANDS = (
    ("dev", "dragoman.cli.serving:dev", SERVE, "Start a hub on this machine, with everything in one process."),
    ("serve", "dragoman.cli.serving:serve", SERVE, "Start a hub as its settings file says."),
    ("realms", "dragoman.cli.realms:app", SERVE, "Several hubs over one PostgreSQL at one address: serve."),
    ("agent", "dragoman.cli.agent:app", WORK, "Add agents, or run them: add, run, ls, show, logs, …"),
    ("relay", "dragoman.cli.relay:relay", WORK, "Be an agent of this hub whose work another hub does."),
    ("call", "dragoman.cli.call:call", WORK, "Give work to an agent, or to a kind of agent, and wait for the result."),
    ("task", "dragoman.cli.task:app", WORK, "Tasks: ls, show, logs, why, retry, cancel, pause, resume."),
    ("trace", "dragoman.cli.trace:trace", WORK, "All tasks that one request led to, step by step."),
    ("ask", "dragoman.cli.ask:app", WORK, "Questions that agents put to people: ls, answer, watch."),
    ("tail", "dragoman.cli.tail:tail", WORK, "Follow what happens."),
    ("translate", "dragoman.cli.translate:translate", WORK, "Show a message of one protocol as it arrives in another."),
    ("play", "dragoman.cli.scenarios.play:play", WORK, "Play a scripted conversation between agents."),
    ("dlq", "dragoman.cli.dlq:app", LOOK, "Dead letters: ls, show, redrive, discard."),
    ("file", "dragoman.cli.file:app", LOOK, "Files that agents and people uploaded: ls, rm."),
    ("contract", "dragoman.cli.contract:app", LOOK, "Contracts between agents: ls, show, end."),
    ("policy", "dragoman.cli.contract:policies", LOOK, "Which domains may ask which: allow, forbid, rm, ls."),
    ("user", "dragoman.cli.user:app", LOOK, "The people who may use the dashboard and the API."),
    ("key", "dragoman.cli.key:app", LOOK, "The keys that sign tokens, and the master key: ls, rotate, give-up."),
    ("audit", "dragoman.cli.audit:app", LOOK, "The audit record: query, verify, checkpoint."),
    ("cluster", "dragoman.cli.cluster:app", LOOK, "Several hubs over one PostgreSQL: init, status, step-down."),
    ("doctor", "dragoman.cli.doctor:doctor", LOOK, "Check this machine, the data directory and the hub."),
    (
        "conformance",
        "dragoman.cli.scenarios.conformance:app",
        LOOK,
        "Check a hub or an agent against the protocols: hub, agent.",
    ),
    ("sandbox", "dragoman.cli.sandbox:app", LOOK, "Which sandbox holds untrusted code on this machine: check."),
    ("store", "dragoman.cli.store:app", LOOK, "Move a hub's store to PostgreSQL: copy."),
    ("backup", "dragoman.cli.backup:backup", LOOK, "Copy the store, while the hub runs or not."),
    ("cert", "dragoman.cli.key:cert", LOOK, "Make a certificate for TLS, signed by a CA of your own."),
    ("config", "dragoman.cli.about:app", LOOK, "The settings, and where each came from: show."),
    ("completion", "dragoman.cli.about:completion", LOOK, "Print or install completion for a shell."),
    ("version", "dragoman.cli.about:version", LOOK, "Print the version."),
)

GROUPS = {name: path.endswith((":app", ":policies")) for name, path, _, _ in COMMANDS}
"""Which of them have commands of their own."""

SERVING = frozenset(name for name, _, group, _ in COMMANDS if group is SERVE)
"""What they print on stdout is for a program that waits for the hub; without one they serve as well."""

ANYWHERE = frozenset({"--hub", "--data", "--output", "-o"})
"""Options with a value that may also stand before the command."""

USAGE = {
    "call": "AGENT WORK [INPUT...]",
    "tail": "[tasks|audit]",
    "translate": "FROM TO [MESSAGE]",
}
"""Where the arguments have better names than the parser would give them."""

EPILOGUE = "Exit codes: 0 ok, 1 the task failed, 2 usage, 3 not found, 4 not allowed, 5 hub unreachable, 6 timeout."


def build() -> App:
    app = App(
        name="dragoman",
        help="The hub where AI agents of different protocols work together, and nothing accepted is lost.",
        help_format="plaintext",  # markdown would import a parser: 40 ms
        help_epilogue=EPILOGUE,
        version=_version,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,  # `main` alone decides how we end
        default_parameter=Parameter(show_default=_worth_showing),
    )
    for name, path, group, help in COMMANDS:
        usage = {"usage": f"Usage: dragoman {name} [OPTIONS] {USAGE[name]}"} if name in USAGE else {}
        app.command(path, name=name, group=group, help=help, **usage)
    return app


def _worth_showing(default: object) -> object:
    return None if isinstance(default, bool) else default


def main(argv: Sequence[str] | None = None) -> int:
    tokens = list(sys.argv[1:] if argv is None else argv)
    _settle_in()
    try:
        outcome = build()(_in_order(tokens))
        sys.stdout.flush()
        if isinstance(sys.stdout, Nowhere) and sys.stdout.lost and SERVING.isdisjoint(_in_order(tokens)[:1]):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return outcome if isinstance(outcome, int) else Exit.OK
    except CommandError as failure:
        if failure.code is Exit.USAGE and failure.next is None:
            failure.next = " ".join((*_meant(tokens), "--help"))
        return _tell(failure)
    except CycloptsError as error:
        if _in_order(tokens)[:1] and _in_order(tokens)[0].startswith("-"):
            return _tell(CommandError(Exit.USAGE, "options come after the command", next="dragoman --help"))
        understood = " ".join(("dragoman", *(error.command_chain or ())))
        return _tell(CommandError(Exit.USAGE, _summary(error), next=f"{understood} --help"))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed the pipe; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return Exit.OK  # rich, which prints the help, has done the same, and would end us as if a task had failed
    except OSError as error:  # a full disk behind stdout, a file that cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        place = f"{error.filename!r}" if error.filename else "stdout"
        sentence = f"cannot read or write {place}: {error.strerror or error}"
        return _tell(CommandError(Exit.USAGE, sentence, next="dragoman doctor"))


def _in_order(tokens: list[str]) -> list[str]:
    """The same with the options that every command shares behind the command: they may be typed anywhere."""
    command: list[str] = []
    shared: list[str] = []
    place, wanted = 0, 1
    while place < len(tokens) and len(command) < wanted:
        token = tokens[place]
        option, equals, _ = token.partition("=")
        if option in ANYWHERE:
            taken = 1 if equals else 2
            shared += tokens[place : place + taken]
            place += taken
        elif token.startswith("-"):
            break
        else:
            command.append(token)
            wanted = 2 if GROUPS.get(command[0]) else 1
            place += 1
    return [*command, *shared, *tokens[place:]]


class Nowhere(io.TextIOWrapper):
    """Takes the place of a stdout that was closed before we began (`>&-`). `lost`: something was written to it."""

    lost = False

    def write(self, text: str, /) -> int:
        self.lost = self.lost or bool(text)
        return super().write(text)


def _settle_in() -> None:
    """Standard streams, their encoding, and empty variables, as the commands expect them."""
    for name, mode in (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb")):  # in this order each gets its own number
        if getattr(sys, name) is None:
            raw = open(os.devnull, mode)  # noqa: SIM115 - it stays open
            setattr(sys, name, (Nowhere if name == "stdout" else io.TextIOWrapper)(raw, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        # An old locale must not turn a check mark into a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    for variable in [name for name, value in os.environ.items() if name.startswith("DRAGOMAN_") and not value]:
        del os.environ[variable]  # set to nothing is not set


def _tell(failure: CommandError) -> int:
    from dragoman.cli.printing import note, suggest

    note(f"error: {failure.sentence}")
    if failure.next:
        suggest(*failure.next.split(BETWEEN))
    return failure.code


def _meant(tokens: list[str]) -> list[str]:
    """The command that was run."""
    words = [token for token in _in_order(tokens) if not token.startswith("-")]
    return ["dragoman", *words[: 2 if words and GROUPS.get(words[0]) else 1]]


def _summary(error: CycloptsError) -> str:
    """What the parser found wrong, in one line."""
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument: {' '.join(map(repr, error.unused_tokens or ()))}"
    return str(error).strip()


def _version() -> str:
    from dragoman.cli.about import installed

    return installed()


if __name__ == "__main__":
    sys.exit(main())
