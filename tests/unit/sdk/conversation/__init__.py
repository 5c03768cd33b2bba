"""Agents and other agents, over a scripted hub: help, handoffs, direct messages, status, errors; both sides, and
restarts."""
