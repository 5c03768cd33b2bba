"""The hub's own language: typed messages between callers and agents, free of any protocol.

    faults        why something failed or was refused
    error_table   the status of each fault, whether to ask again, what to do next
    tasks         the messages about a task, and what the hub records of it
    files         what is known of a file that belongs to a task
    brevity       text that is too long for its place

It knows no row, no agent and no wire format. The core decides about messages, a protocol's mapping converts its wire
types to them and back, and the SDK passes them to handlers: all three import this package, and it imports none of them.
"""
