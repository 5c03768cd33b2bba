"""The hub's own half: its model, its rules, its promises.

Nothing in here reads a clock, a random source, a socket or a database. A decision takes values and a
`Moment` and leaves changes behind; `core.hub` says which decision answers which command.
"""
