"""The embedded store: one SQLite file, written by one helper process, read here.

`store` is the port. `writer` is the helper's program: it imports this package, so nothing is imported here.
"""
