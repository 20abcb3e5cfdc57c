"""Requests in, tokens out: sequences, the scheduler, the runner, the sampler and their loop."""
