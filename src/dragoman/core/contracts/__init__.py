"""Contracts between two agents of any protocol: how they come about and end."""
