"""The work in hand: how an assignment becomes a call of the author's function, and its end an outcome.

task         what a handler sees of its work             sync_task    the same for a plain function in a thread
signature    its hints as a contract                     type_hints   hints beyond msgspec's own
task_runner  from assignment to outcome                  running_task a task as the runner keeps it
reporter     progress, files and questions meanwhile     outcome      how the end of a handler is reported
slots        how much runs at once                       stats        what an agent counts of its work
outbox       what must reach the hub                     journal      what survives a restart

Knows no protocol and no socket: it uses only the types of `messages`.
"""
