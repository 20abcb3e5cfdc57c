"""Holdover: a KV-cache-first inference engine and planner."""

__version__ = "0.1.0"
