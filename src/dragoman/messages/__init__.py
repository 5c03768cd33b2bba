"""The hub's own language: what callers and agents say to each other, typed and free of any protocol.

faults        why something failed or was refused
error_table   the status of each fault, whether to ask again, what to do next
tasks         what is said about a task, and what happens to it
files         what is known of a file that belongs to a task
brevity       text that is too long for where it stands

It knows no row, no agent and no wire format. The core decides about messages, a protocol's mapping makes them of its
wire types and back, and the SDK hands them to handlers: all three import this package, and it imports none of them.
"""
