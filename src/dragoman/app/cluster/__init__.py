"""One hub of several nodes over PostgreSQL: one leads, the others follow it and take connections all the same.

    election.py   the decision: what a node knows → lead, take the lease, follow, wait, step down. Pure
    keeper.py     reads and renews the lease, asks the decision, and says when a term is over
    node.py       one term after the other, on the same listening sockets
    link/         the stream between the leader and the other nodes

Above: `app.process`, which runs a node until a signal. Below: the lease and the store (`stores.postgres`).
"""
