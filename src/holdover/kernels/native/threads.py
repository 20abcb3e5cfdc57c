"""The threads that native kernels run on: torch's own OpenMP workers.

After a parallel region OpenMP's workers spin for a while, waiting for the next. A second pool would
fight them for the cores, so the kernels enter their parallel regions through the library that torch
has loaded: its `GOMP_parallel` is what a compiler calls for `#pragma omp parallel`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path


def torch_parallel() -> int:
    """Address of GOMP_parallel in torch's OpenMP library; 0 where there is none.

    Without it the kernels start threads for each call: slower, and nothing else changes.
    """
    import torch

    near = Path(torch.__file__).parent.parent  # torch/lib or torch.libs
    for path in sorted(_loaded_openmp(), key=lambda path: not path.is_relative_to(near)):
        function = getattr(ctypes.CDLL(str(path)), "GOMP_parallel", None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _loaded_openmp() -> set[Path]:
    """OpenMP libraries in this process, as Linux lists them."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    names = ("libgomp", "libomp", "libiomp")
    return {Path(path) for path in paths if Path(path).name.startswith(names)}
