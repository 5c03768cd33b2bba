"""Where code that nobody vouches for runs: a ladder of walls, each of which has to prove itself on this machine.

    model.py        the values: levels, what may be allowed, what a self-test found
    ladder.py       which rungs stand here, and the strongest one that a policy accepts
    bubblewrap.py   processes: namespaces, seccomp, Landlock, limits          ┐
    landlock.py     processes, where namespaces are not to be had             ├ the rungs
    wasm.py         WebAssembly modules: fuel, memory, time, no files         │
    hyperlight.py   Python source in a virtual machine of its own             ┘
    launch.py       the small program that puts up the walls and becomes the command; imports nothing of ours
    trials.py       the small program that tries everything forbidden, from inside

A level is claimed only after its self-test passed in this process: every trial is a real attempt, and all of them have
to be refused. Nothing here knows the hub; whoever starts processes asks for an argument vector and starts that.
"""
