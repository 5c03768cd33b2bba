"""Where untrusted code runs: levels of isolation, each of which has to pass a self-test on this machine.

    model.py            the values: levels, what may be allowed, what a self-test found
    levels.py           which levels this machine has, and the strongest one that a policy accepts
    processes.py        processes: bubblewrap, or Landlock and seccomp            ┐
    wasm.py             WebAssembly modules: fuel, memory, time, no files         ├ the levels
    hyperlight.py       Python source in a virtual machine of its own             ┘
    launcher.py         the small program that restricts itself and becomes the command; imports nothing of ours
    egress_proxy.py     the way to allowed hosts, and to no others
    probes.py           the small program that attempts everything forbidden, from inside; self_test.py runs it

A level is claimed only after its self-test passed in this process: every probe is a real attempt, and all of them have
to be refused. Nothing here knows the hub: the supervisor asks for an argument vector and starts that.
"""
