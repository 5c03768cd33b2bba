"""Every setting of the hub: its name, its default, its bounds, and where its value came from.

The structs of `model` are the table. A value comes from the first of these that has one (`loading`):

    source        spelt as                                    for example
    ------------  ------------------------------------------  ---------------------------------
    a flag        --port                                      dragoman dev --port 9000
    environment   DRAGOMAN_<GROUP>__<KEY>, or a `SHORT` name  DRAGOMAN_SERVER__PORT=9000
    a file        [group] key = value, in dragoman.toml       [server]\\nport = 9000
    the default   here                                        8420

An unknown name, or a value that makes no sense, is an error that says which file or variable holds it: a
mistyped limit must not become the default in silence. (Only a variable without a group is left alone, unless it looks
like one of ours: it may belong to another program.) All errors are reported at once, also values
that contradict each other (`loading.contradictions`).

Relative paths in a file are meant from that file's directory, since a service starts wherever it likes; those
in flags and the environment from the working directory.
"""

from __future__ import annotations

from dragoman.app.settings.loading import FILE, Loaded, SettingsError, is_loopback, load, variable_of
from dragoman.app.settings.model import (
    TABLES,
    A2acpSettings,
    AgentmsgSettings,
    AmqpSettings,
    ChiffonSettings,
    ClusterSettings,
    CovenSettings,
    FileSettings,
    ForgeSettings,
    LogSettings,
    Origin,
    RuleSettings,
    SandboxSettings,
    Server,
    Settings,
    StoreSettings,
    TlsSettings,
    keys,
    value_of,
)

__all__ = (
    "FILE",
    "TABLES",
    "A2acpSettings",
    "AgentmsgSettings",
    "AmqpSettings",
    "ChiffonSettings",
    "ClusterSettings",
    "CovenSettings",
    "FileSettings",
    "ForgeSettings",
    "Loaded",
    "LogSettings",
    "Origin",
    "RuleSettings",
    "SandboxSettings",
    "Server",
    "Settings",
    "SettingsError",
    "StoreSettings",
    "TlsSettings",
    "is_loopback",
    "keys",
    "load",
    "value_of",
    "variable_of",
)
