"""Made-up input for everything that reads bytes from outside.

samples     good messages of every protocol, to be broken
hostile     strategies: raw bytes, and good messages broken in one or a few places
work        counts what a decoder does, so that "bounded" is a number of steps and not a time
decoders    the table: every decoder, what it may raise, how what it took is written again, what it must not repeat
connections       the same for both ends of every protocol's connection

`make test` tries each a few dozen times. `make soak` goes on for FUZZ_SECONDS (10) with each, and lets atheris, which
looks at the branches that are taken, try as well where it is installed.
"""
