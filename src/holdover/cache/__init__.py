"""Where KV lives: arena, sectors, blocks, prefix index, and the manager, the only door."""
