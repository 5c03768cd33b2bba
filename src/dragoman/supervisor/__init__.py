"""Programs that the hub itself starts, and speaks with over their standard streams.

hub ── supervisor ── nursery ──▶ child ──▶ whatever the child starts
        │  (one for each agent)     ▲ │
        └──── stdin, stdout, stderr ┘ ▼
                                nothing of it outlives the hub

nursery.py      a small process that starts the children and buries them; runs by itself, imports nothing of ours
channel.py      the hub's end of it
walls.py        children that nobody vouches for: in a sandbox, or not at all
modules.py      WebAssembly modules as children, one run for each task
recipe.py       what is started: command, directory, environment, limits, when to start it again
vault.py        the values of environments, which may be secrets: in files of their own, never in the store
restarts.py     whether an ended child is started again, and when: a pure decision
pace.py         how much of a child's output is read: a pure decision
pipes.py        its three streams on the event loop
logbook.py      what it printed
child.py        one agent's life, from start to start
supervisor.py   all of them
"""
