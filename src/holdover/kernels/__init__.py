"""Attention over the paged cache: one plug-in per backend, all behind `base.KernelBackend`."""
