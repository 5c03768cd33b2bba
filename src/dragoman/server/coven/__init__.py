"""Coven over gRPC: the endpoint, an agent's stream (`stream`, a wire; `session`, coven on it), callers (`callers`), who
is who (`authentication`), who is connected (`connected_agents`), and how much of everything (`limits`).

Nothing is imported here: `dragoman translate` uses `inbound` and `outbound` without gRPC, which is slow to load.
"""
