"""The stream between a following node and the leader of its realm.

Every node takes connections. A following node decides nothing: it hands commands to the leader, in their order, over
one stream, and what the leader sends to an agent comes back through the node that holds the agent's connection.

    leader.LeaderPort            listens for nodes, and tells each of them what a commit means for it
    node_link.NodeLink           one node, as the leader sees it
    remote_intake.RemoteIntake   the intake of a following node: what endpoints, the API and the supervisor use
    mirror                       what a node knows of the leader's directory: a snapshot, then the change of each commit
    remote_live                  the event stream and the open bucket of the plots, at a following node
    messages                     what is said on the stream: every command and every outcome there is, typed
    stream                       length-prefixed JSON over TCP, heartbeats, bounded buffers

What the stream promises:

- *Order*: commands of a node are decided in the order in which the node enqueued them. Of each commit, a node gets what
  it changed in the mirror, then the outcomes, then the deliveries; all of it takes effect in one turn of the node's
  loop, so no handler sees a part of a commit.
- *Nothing twice*: a command is sent over one stream, once. When the stream ends, what is unanswered is neither
  acknowledged nor refused: the node closes its connections as a hub that stops, and agents send again what they have no
  receipt for.
- *Bounded*: a node that does not read is cut off before the leader holds more than so many bytes for it. A leader that
  is behind stops reading, and the node refuses beyond a limit of its own.
- *Silence is death*: both ends send heartbeats, and end the stream when they hear nothing for `ttl` seconds.
"""

from dragoman.app.cluster.link.leader import LeaderPort
from dragoman.app.cluster.link.messages import LinkRefused
from dragoman.app.cluster.link.remote_intake import RemoteIntake

__all__ = ("LeaderPort", "LinkRefused", "RemoteIntake")
