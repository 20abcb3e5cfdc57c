"""The forward pass of each family that is served, on tensors and functions alone."""
