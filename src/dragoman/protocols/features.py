"""What each protocol can carry, all of them: `messages/features.py` computes from it what a pair loses."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.messages.features import Features
from dragoman.protocols.a2acp.features import FEATURES as A2ACP
from dragoman.protocols.agentmsg.features import FEATURES as AGENTMSG
from dragoman.protocols.chiffon.features import FEATURES as CHIFFON
from dragoman.protocols.coven.features import FEATURES as COVEN
from dragoman.protocols.forge.features import FEATURES as FORGE

FEATURES: Mapping[str, Features] = {column.protocol: column for column in (A2ACP, AGENTMSG, CHIFFON, COVEN, FORGE)}
