"""Commands for people: fast to start, plain to read, safe to pipe.

Importing cyclopts takes about 90 ms here and Python 12: that is a good part of the 250 ms a command may take.
So every command lives in a module of its own that is imported only when it is called, and rich, msgspec, apsw, the
stores and the servers only inside the few commands that need them. A test watches `sys.modules`.
"""
