"""The five protocols, each a pure sans-IO half of its own. They know `wire` and nothing else, not even each other."""
