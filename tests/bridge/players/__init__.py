"""Everybody who can stand on either side of the bridge. A new protocol joins all the tests by its line here."""

from tests.bridge.players.a2acp import A2acp
from tests.bridge.players.agentmsg import Agentmsg
from tests.bridge.players.chiffon import Chiffon
from tests.bridge.players.coven import Coven
from tests.bridge.players.forge import Forge
from tests.bridge.players.neutral import Player

PLAYERS: dict[str, Player] = {
    "a2acp": A2acp,
    "agentmsg": Agentmsg,
    "chiffon": Chiffon,
    "coven": Coven,
    "forge": Forge,
}
