"""Agents that the hub starts as its children, and connects to over their standard streams.

hub ── supervisor ── spawner ──▶ child ──▶ programs that the child starts
        │  (one for each agent)     ▲ │
        └──── stdin, stdout, stderr ┘ ▼
                                none of these processes outlives the hub

spawner.py            a small process that starts the children and reaps them; a script that imports nothing of dragoman
spawner_client.py     the hub's end of it
sandbox_policy.py     untrusted children: in a sandbox, or not at all
wasm_agent.py         WebAssembly modules as children, one run for each task
spec.py               what is started: command, directory, environment, limits, when to start it again
environment.py        a child's environment; values may be secrets: in files of their own, never in the store
pipes.py              its three streams on the event loop, and how much of its output is read
child_log.py          what it printed, and what agents that are no children log
process.py            one process of a child, and its session with the hub
child.py              one agent's life, from start to start
supervisor.py         all of them
"""
