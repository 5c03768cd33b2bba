"""The agents of `make run`: small, and written as a user would write them.

Each module is one program, built on nothing but `from dragoman import Agent, Client`. What they do is acted (no host is
touched), how they do it is not: they register, report, ask, fail and are retried like real ones. `dragoman.app.demo`
starts them beside a hub; `python -m dragoman.demo` is how.
"""
