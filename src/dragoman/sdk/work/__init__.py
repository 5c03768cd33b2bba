"""Running work: how an assignment becomes a call of the user's function, and its end an outcome.

task          what a handler sees of its work            signature  a handler: its type hints, its retries
task_runner   from assignment to outcome                 outcome    how the end of a handler is reported
running_task  what the runner keeps of each task         reporter   progress, files and questions meanwhile
outbox        what must reach the hub                    journal    what survives a restart

Knows no protocol and no socket: it uses only the types of `messages`.
"""
