"""Slower homes of blocks: one file each, named as `--tiers` names it."""
