"""Agents and other agents, over a scripted hub: help, handoffs, letters, status, errors; both sides, and restarts."""
