"""Traffic of a trace against a cache of some size, before anything is bought: nothing is loaded.

The manager, its prefix index, eviction, admission and the tiers' bookkeeping are the engine's own,
on an arena without memory; only time and bandwidth are modelled.
"""
