"""The work in hand: how a request becomes a call of the author's function, and its end an outcome.

task       what a handler sees of its work             sync_task  the same for a plain function in a thread
signature  its hints as a contract                     kinds      hints beyond msgspec's own
desk       from request to outcome                     job        a piece of work as the desk keeps it
speech     what is said meanwhile                      outcome    how a handler's end is told
places     how much runs at once                       vitals     what an agent counts of its work
mailbox    what must reach the hub                     journal    what survives a restart

Knows no protocol and no socket: it speaks the `words` that are nobody's.
"""
