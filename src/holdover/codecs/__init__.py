"""How a plane row becomes bytes: one file per codec, found by its name."""
