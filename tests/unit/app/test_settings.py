"""Which value counts, where it came from, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.app.settings import TABLES, Origin, Settings, SettingsError, keys, load, value_of, variable_of
from dragoman.app.settings.model import AgentSettings
from dragoman.core.rules import Rules


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.toml"


def problems(file: Path | None = None, **sources: Any) -> list[str]:
    with pytest.raises(SettingsError) as failed:
        load(file=file, **sources)
    return [problem.replace(f"{file}", "FILE") for problem in failed.value.problems]


def test_without_any_source_everything_is_the_default() -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert loaded.origins == {name: Origin("default") for name, _, _ in keys()}


def test_flags_beat_environment_beats_file_beats_default(file: Path) -> None:
    file.write_text("[server]\nhost = '127.0.0.2'\nport = 1\ngrpc_port = 1\n")
    loaded = load(
        flags={"server.host": None, "server.port": 3},
        environ={"DRAGOMAN_SERVER__PORT": "2", "DRAGOMAN_SERVER__GRPC_PORT": "2", "PATH": "/bin"},
        file=file,
    )
    server = loaded.settings.server
    assert (server.host, server.port, server.grpc_port, server.drain_seconds) == ("127.0.0.2", 3, 2, 30.0)
    told = {name: str(loaded.origins[f"server.{name}"]) for name in ("host", "port", "grpc_port", "drain_seconds")}
    assert told == {
        "host": f"file {file}",
        "port": "flag --port",
        "grpc_port": "environment DRAGOMAN_SERVER__GRPC_PORT",
        "drain_seconds": "default",
    }


def test_a_setting_is_known_by_its_former_name(file: Path) -> None:
    file.write_text("[quotas]\nletters_per_agent = 7\n")
    assert load(file=file).settings.quotas.direct_messages_per_agent == 7
    loaded = load(environ={"DRAGOMAN_QUOTAS__LETTERS_PER_AGENT": "8"}, file=file)
    assert loaded.settings.quotas.direct_messages_per_agent == 8
    assert str(loaded.origins["quotas.direct_messages_per_agent"]) == "environment DRAGOMAN_QUOTAS__LETTERS_PER_AGENT"


BESIDE = {
    "server.host": {"server.allow_plain": True},
    "tls.certificate": {"tls.key": "/k"},
    "tls.key": {"tls.certificate": "/c"},
    "tls.client_ca": {"tls.certificate": "/c", "tls.key": "/k"},
    "tls.clients": {"tls.certificate": "/c", "tls.key": "/k", "tls.client_ca": "/ca"},
    "oidc.issuer": {"oidc.client_id": "dragoman"},
    "coven.tls_certificate": {"coven.tls_key": "/k"},
    "coven.tls_key": {"coven.tls_certificate": "/c"},
    "files.url": {"store.url": "postgresql://x", "cluster.node": "n1"},
    "store.url": {"cluster.node": "a"},
    "cluster.node": {"store.url": "postgresql://db/hub"},
}
"""What a setting is refused without."""


@pytest.mark.parametrize(("name", "type"), [(name, type) for name, type, _ in keys() if name not in TABLES])
def test_every_setting_can_be_set_by_file_and_by_environment(name: str, type: Any, file: Path) -> None:
    default = value_of(Settings(), name)
    text, value = {
        "chiffon.negotiation": ("highest", "highest"),
        "store.kind": ("memory", "memory"),
        "store.url": ("postgresql://db/hub", "postgresql://db/hub"),
        "cluster.node": ("a", "a"),
        "cluster.realm": ("team_a", "team_a"),
        "files.url": ("s3://bucket/prefix", "s3://bucket/prefix"),
        "amqp.url": ("amqps://broker/agents", "amqps://broker:5671/agents"),
        "log.level": ("debug", "debug"),
        "log.format": ("json", "json"),
        "tls.clients": ("required", "required"),
        "oidc.issuer": ("https://id.example", "https://id.example"),
        "rules.request_memory_seconds": ("7200", 7200.0),
        "agentmsg.budget_per_task": ("0.5", 0.5),
        "agentmsg.budget_per_agent": ("10", 10.0),
        "agentmsg.budget_total": ("100", 100.0),
        "sandbox.minimum": ("landlock+seccomp", "landlock+seccomp"),
        "sandbox.fuel": ("1000000", 1_000_000),
        "server.allowed_hosts": ("hub.example, localhost", ("hub.example", "localhost")),
        "store.log_limit_bytes": ("16777216", 16 << 20),
    }.get(name) or (
        ("true", True) if isinstance(default, bool)
        else ("2048", 2048) if isinstance(default, int)
        else ("1.5", 1.5) if isinstance(default, float)
        else ("0, 0.5", (0.0, 0.5)) if isinstance(default, tuple)
        else ("/else/where", "/else/where")
    )  # fmt: skip
    beside = BESIDE.get(name, {})
    by_environment = load(environ={variable_of(name): text}, flags=beside)
    assert value_of(by_environment.settings, name) == value
    assert by_environment.origins[name] == Origin("environment", variable_of(name))

    group, _, key = name.rpartition(".")
    written = list(value) if isinstance(value, tuple) else value
    line = f"{key} = {repr(written).lower() if isinstance(written, bool) else repr(written)}\n"
    file.write_text(f"[{group}]\n{line}" if group else line)
    by_file = load(file=file, flags=beside)
    assert value_of(by_file.settings, name) == value
    assert by_file.origins[name] == Origin("file", str(file))


def test_an_identity_provider_needs_https_and_a_client() -> None:
    told = problems(flags={"oidc.issuer": "http://id.example"})
    assert [problem.partition(" (")[0] for problem in told] == ["oidc.issuer", "oidc.issuer"]
    assert ("with https" in told[0], "set oidc.client_id" in told[1]) == (True, True)
    here = {"oidc.issuer": "http://localhost:9400", "oidc.client_id": "dragoman"}
    assert load(flags=here).settings.oidc.issuer == "http://localhost:9400"


def test_the_well_known_ones_have_short_names() -> None:
    environ = {"DRAGOMAN_DATA": "d", "DRAGOMAN_HOST": "::1", "DRAGOMAN_PORT": "0", "DRAGOMAN_LOG_LEVEL": "error"}
    loaded = load(environ=environ)
    settings = loaded.settings
    assert (settings.data, settings.server.host, settings.server.port, settings.log.level) == ("d", "::1", 0, "error")
    assert str(loaded.origins["server.port"]) == "environment DRAGOMAN_PORT"


def test_two_names_of_one_setting_may_agree_but_not_contradict() -> None:
    assert load(environ={"DRAGOMAN_PORT": "1", "DRAGOMAN_SERVER__PORT": "1"}).settings.server.port == 1
    assert problems(environ={"DRAGOMAN_PORT": "1", "DRAGOMAN_SERVER__PORT": "2"}) == [
        "environment variables DRAGOMAN_PORT and DRAGOMAN_SERVER__PORT contradict each other: unset one."
    ]


def test_what_is_no_setting_is_left_alone() -> None:
    environ = {"DRAGOMAN_URL": "x", "DRAGOMAN_TOKEN": "x", "DRAGOMAN_CRASH_AT": "x", "DRAGOMAN_GREETER": "x"}
    assert load(environ=environ).settings == Settings()


def test_paths_in_a_file_are_meant_from_where_it_lies(file: Path) -> None:
    file.write_text("data = 'data'\n[store]\npath = '/abs/hub.sqlite'\n")
    settings = load(file=file).settings
    assert (settings.data, settings.store_path) == (str(file.parent / "data"), Path("/abs/hub.sqlite"))
    assert load(environ={"DRAGOMAN_DATA": "rel"}).settings.store_path == Path("rel/hub.sqlite")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nprot = 1", "FILE: there is no setting 'server.prot'. Did you mean 'server.port'?"),
        (
            "[server]\nidle_limit = 1",
            "FILE: there is no setting 'server.idle_limit'. Did you mean 'server.idle_seconds'?",
        ),
        ("[servers]\nport = 1", "FILE: there is no setting 'servers'. Did you mean 'server'?"),
        ("port = 1", "FILE: there is no setting 'port'. Did you mean 'server.port'?"),
        ("[log]\nqqq = 1", "FILE: there is no setting 'log.qqq'. `dragoman config show` lists them all."),
        ("server = 1", "FILE: server is a group of settings: write [server] and its keys below."),
        ("[server]\nport = '8420'", "FILE: server.port: '8420' does not do: expected `int`, got `str`."),
        ("[server]\nport = 70000", "FILE: server.port: 70000 does not do: expected `int` <= 65535."),
        ("[server]\nport = true", "FILE: server.port: True does not do: expected `int`, got `bool`."),
        ("[rules]\nidle_seconds = 0", "FILE: rules.idle_seconds: 0 does not do: expected `float` > 0.0."),
        (
            "[log]\nlevel = 'loud'",
            "FILE: log.level: 'loud' does not do: invalid enum value 'loud'; use one of: debug, info, warning, error.",
        ),
        ("[store", "FILE: is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        (
            "[rules]\nretry_delays_seconds = []",
            "rules.retry_delays_seconds (file FILE) is empty: write one delay for each attempt, at least one.",
        ),
        (
            "[rules]\nrequest_memory_seconds = 100",
            "rules.request_memory_seconds (file FILE) is 100, but attempts may be repeated for 127 s: a repeated"
            " request would be done twice (all-D5). Raise it.",
        ),
        (
            "[rules]\nkeep_finished_days = 0.5",
            "rules.keep_finished_days (file FILE) is 0.5, but a finished request answers for its id for 86400 s, and is"
            " forgotten with its task. Raise it, or lower rules.request_memory_seconds.",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    assert problems(file) == [said]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("DRAGOMAN_SERVER__PORT", "many", "'many' does not do: expected `int`, got `str`."),
        ("DRAGOMAN_SERVER__PROT", "1", "no such setting. Did you mean 'DRAGOMAN_SERVER__PORT'?"),
        ("DRAGOMAN_PROT", "1", "no such setting. Did you mean 'DRAGOMAN_PORT'?"),
        ("DRAGOMAN_QQQ__ZZZ", "1", "no such setting. `dragoman config show` lists them all."),
        ("DRAGOMAN_CHIFFON__ALLOW_PRIVATE_CALLBACKS", "maybe", "'maybe' does not do: expected `bool`, got `str`."),
    ],
)
def test_a_wrong_variable_is_one_sentence(variable: str, value: str, said: str) -> None:
    assert problems(environ={variable: value}) == [f"environment variable {variable}: {said}"]


def test_a_wrong_flag_is_one_sentence() -> None:
    assert problems(flags={"server.port": -1}) == ["--port: -1 does not do: expected `int` >= 0."]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert "there is no such file" in problems(tmp_path / "nowhere.toml")[0]
    assert "cannot be read" in problems(tmp_path)[0]


def test_all_problems_are_reported_at_once(file: Path) -> None:
    file.write_text("[server]\nprot = 1\nport = 'x'\n")
    assert len(problems(file, environ={"DRAGOMAN_PROT": "1"}, flags={"server.port": -1})) == 4


def test_the_rules_reach_the_core_in_microseconds() -> None:
    assert Settings().core_rules() == Rules()
    settings = load(environ={"DRAGOMAN_RULES__RETRY_DELAYS_SECONDS": "0,0.25", "DRAGOMAN_RULES__GRACE_SECONDS": "1"})
    rules = settings.settings.core_rules()
    assert (rules.retry_delays, rules.grace) == ((0, 250_000), 1_000_000)


def test_the_endpoints_defaults_are_those_of_the_settings() -> None:
    from dragoman.server.limits import Limits

    limits, server = Limits(), Settings().server
    assert (
        server.max_message_bytes, server.max_connections, server.header_seconds, server.body_seconds,
        server.idle_seconds, server.max_poll_seconds,
    ) == (
        limits.message_bytes, limits.max_connections, limits.header_seconds, limits.body_seconds, limits.idle_seconds,
        limits.poll_seconds,
    )  # fmt: skip


AGENTS = """
[[agents]]
id = "reviewer"
command = ["node", "reviewer.js"]
cwd = "agents"
restart = "always"
role = "reviewer"
capabilities = ["typescript"]
env = { MODEL = "large", KEY = "canary" }
pass_env = ["HTTPS_PROXY"]
limits = { memory_mb = 512 }

[[agents]]
id = "echo"
command = ["cat"]
"""


def test_agents_are_declared_in_the_file(file: Path) -> None:
    file.write_text(AGENTS)
    loaded = load(file=file)
    reviewer, echo = loaded.settings.agents
    assert (reviewer.command, reviewer.restart, reviewer.role) == (("node", "reviewer.js"), "always", "reviewer")
    assert reviewer.cwd == str(file.parent / "agents")
    assert reviewer.limits.for_the_kernel() == {"core": 0, "open_files": 1024, "memory": 512 << 20}
    assert echo == AgentSettings(id="echo", command=("cat",))
    assert str(loaded.origins["agents"]) == f"file {file}"


def test_of_an_agents_environment_only_names_are_shown(file: Path) -> None:
    file.write_text(AGENTS)
    shown = value_of(load(file=file).settings, "agents")
    assert shown[0]["env"] == ["KEY", "MODEL"]
    assert "canary" not in str(shown)
    file.write_text(AGENTS.replace("large", "a\\u0000b"))
    (problem,) = problems(file)
    assert "canary" not in problem


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('[[agents]]\nid = "a"', "FILE: agents: missing required field ([0].command)."),
        ('[[agents]]\nid = "a"\ncommand = []', "FILE: agents: expected `array` of length >= 1 ([0].command)."),
        (
            '[[agents]]\nid = "a"\ncommand = ["x"]\nrestrat = "never"',
            "FILE: agents: object contains unknown field `restrat` ([0].restrat).",
        ),
        (
            '[[agents]]\nid = "a"\ncommand = ["x"]\n[[agents]]\nid = "a"\ncommand = ["y"]',
            "agents (file FILE): 'a' stands there twice: give each agent an id of its own.",
        ),
        ("[agents]\nid = 'a'", "FILE: agents: expected `array`, got `object`."),
    ],
)
def test_a_problem_of_a_declared_agent_is_reported(file: Path, wrong: str, said: str) -> None:
    file.write_text(wrong)
    assert problems(file) == [said]


# -- TLS


PAIR = {"tls.certificate": "c.pem", "tls.key": "c.key"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "hub.example", ""])
def test_where_others_can_reach_it_a_hub_speaks_tls_or_is_allowed_to_do_without(host: str) -> None:
    [said] = problems(flags={"server.host": host})
    assert said.startswith(f"server.host (flag --host) is {host}, which others can reach, and HTTP and gRPC would be")
    assert "dragoman cert --host NAME" in said
    assert "server.allow_plain = true" in said
    assert load(flags={"server.host": host, "server.allow_plain": True}).settings.server.host == host
    assert load(flags={"server.host": host, **PAIR}).settings.server.host == host


def test_each_port_is_asked_for_its_own_tls() -> None:
    [said] = problems(flags={"server.host": "::", "coven.tls_certificate": "c", "coven.tls_key": "k"})
    assert "reach, and HTTP would be" in said
    [said] = problems(flags={"server.host": "::", "coven.enabled": False})
    assert "reach, and HTTP would be" in said


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_on_loopback_nothing_is_asked(host: str) -> None:
    assert load(flags={"server.host": host}).settings.server.host == host


def test_tls_by_halves_is_refused() -> None:
    assert problems(flags={"tls.certificate": "c"}) == [
        "tls.certificate (flag --certificate) is of no use alone: set tls.key as well."
    ]
    assert problems(environ={"DRAGOMAN_COVEN__TLS_KEY": "k"}) == [
        "coven.tls_key (environment DRAGOMAN_COVEN__TLS_KEY) is of no use alone: set coven.tls_certificate as well."
    ]
    assert problems(flags={"tls.client_ca": "ca"}) == [
        "tls.client_ca (flag --client-ca) needs TLS: set tls.certificate and tls.key as well."
    ]
    assert problems(flags={**PAIR, "tls.clients": "required"}) == [
        "tls.clients (flag --clients) is required, but no CA is named that signs them: set tls.client_ca."
    ]


def test_certificates_are_meant_from_the_files_directory(file: Path) -> None:
    file.write_text('tls.certificate = "tls/server.pem"\ntls.key = "tls/server.key"\n')
    tls = load(file=file).settings.tls
    assert (tls.certificate, tls.key) == (str(file.parent / "tls/server.pem"), str(file.parent / "tls/server.key"))


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-1"])
def test_a_bucket_for_files_may_be_named(url: str) -> None:
    beside = {"store.url": "postgresql://x", "cluster.node": "n1"}
    assert load(environ={"DRAGOMAN_FILES__URL": url}, flags=beside).settings.files.url == url
    with pytest.raises(SettingsError, match=r"files\.url .* needs a store in PostgreSQL: set store\.url as well"):
        load(environ={"DRAGOMAN_FILES__URL": url})


def test_what_names_no_bucket_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"files\.url \(environment .*names no bucket: write s3://BUCKET/PREFIX"):
        load(environ={"DRAGOMAN_FILES__URL": "https://bucket"})


def test_the_master_key_in_the_environment_is_no_setting() -> None:
    load(environ={"DRAGOMAN_MASTER_KEY": "0" * 64})


def refused_cluster(**flags: Any) -> str:
    with pytest.raises(SettingsError) as error:
        load(flags={name.replace("__", "."): value for name, value in flags.items()})
    return str(error.value)


def test_settings_of_a_node_that_contradict_each_other_say_what_to_do() -> None:
    url = "postgresql://u:secret@db/hub"
    assert "set store.url (--store postgresql://…)" in refused_cluster(cluster__node="a")
    assert "give it a name of its own with --node" in refused_cluster(store__url=url)
    assert "must begin with postgresql://" in refused_cluster(store__url="mysql://db", cluster__node="a")
    assert "leave one out" in refused_cluster(store__url=url, cluster__node="a", store__path="/x/hub.sqlite")
    assert "leave one out" in refused_cluster(store__url=url, cluster__node="a", store__kind="memory")
    assert "set cluster.tls" in refused_cluster(store__url=url, cluster__node="a", cluster__host="0.0.0.0")
    found = load(flags={"store.url": url, "cluster.node": "a"}).settings
    assert (found.cluster.realm, found.cluster.tls) == ("default", None)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@db/hub", "postgresql://u:…@db/hub"),
        ("postgresql://u@db/hub?sslmode=require&password=secret", "postgresql://u@db/hub?sslmode=require&password=…"),
        ("postgresql://u:a:b%40@one,two/hub", "postgresql://u:…@one,two/hub"),
        ("postgresql:///hub?host=/run", "postgresql:///hub?host=/run"),
    ],
)
def test_the_password_of_the_database_is_never_shown(url: str, shown: str) -> None:
    settings = load(flags={"store.url": url, "cluster.node": "a"}).settings
    assert value_of(settings, "store.url") == shown
