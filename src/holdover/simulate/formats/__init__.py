"""Formats of traces: one file each, recognised by the first line."""
