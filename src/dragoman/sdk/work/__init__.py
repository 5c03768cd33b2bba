"""The work in hand: how an assignment becomes a call of the author's function, and its end an outcome.

task         what a handler sees of its work             signature    its hints as a contract
task_runner  from assignment to outcome                  type_hints   hints beyond msgspec's own
running_task a task as the runner keeps it               outcome      how the end of a handler is reported
reporter     progress, files and questions meanwhile     retry        how often a handler runs again
outbox       what must reach the hub                     stats        what an agent counts of its work
journal      what survives a restart

Knows no protocol and no socket: it uses only the types of `messages`.
"""
