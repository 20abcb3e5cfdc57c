"""Which cached block goes first when room is needed: one file per policy."""
