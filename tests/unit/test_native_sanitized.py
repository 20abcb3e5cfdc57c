"""Random shapes through the native kernels, under AddressSanitizer and UBSan, and 16 lanes wide.

The conformance suite's own worlds and decoders of random shapes, in a process that runs under the
sanitizers: an access outside arena, workspace, weights, buffers, rows or result ends it. The wide
build is AVX-512's source, its lanes made of two AVX2 registers, so that its code runs on machines
without AVX-512 too.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = """
import importlib.util, os, random, sys
import torch
torch.set_num_threads(2)
sys.path.insert(0, {conformance!r})
name = "holdover.kernels.native._native"
spec = importlib.util.spec_from_file_location(name, {module!r})
import holdover.kernels.native as package
sys.modules[name] = package._native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package._native)
import test_kernels as suite
from holdover.codecs.base import codec_names
isas = package._native.isas()
assert set(("wide", "wide_bf16", "wide_amx")) <= set(isas), isas
draw = random.Random({seed})
for turn in range({turns}):
    os.environ[suite.ISA_VARIABLE] = isas[turn % len(isas)]
    codec = draw.choice(codec_names())
    dims = [d for d in range(8, 265, 8) if suite.stores(codec, d)]
    whole = [d for d in dims if d % 64 == 0]  # fill registers of matrices
    dims = draw.choice((dims, whole))
    case = suite.Case(codec, draw.choice(suite.RESIDENCIES), draw.choice(suite.HEADS + ((7, 1),)),
                      draw.choice(dims), draw.choice((1, 3, 8, 16, 17)), draw.choice((0.0, 3.0)),
                      value_dim=draw.choice(dims[:-1] or dims))
    if draw.random() < 0.3:
        heads = draw.choice(((6, 1), (40, 1)))
        case = suite.replace(case, heads=heads, rope_dim=draw.choice((32, 64)), value_dim=None)
    lengths = []
    for _ in range(draw.randint(1, 4)):
        context = draw.choice((draw.randint(1, 300), draw.randint(1, 2300)))
        lengths.append((context, draw.choice((1, min(context, draw.randint(0, 150))))))
    print(turn, isas[turn % len(isas)], case, lengths, flush=True)
    suite.check("native", case, lengths, layers=[0])

sys.path.insert(0, {tests!r})
from unit.models.random_decoders import check_random
for turn in range({decoders}):
    os.environ[suite.ISA_VARIABLE] = isas[turn % len(isas)]
    print(turn, isas[turn % len(isas)], flush=True)
    check_random(draw)
from unit import test_native_linear as linear
for turn in range({turns}):
    isa, element = isas[turn % len(isas)], draw.choice(linear.ELEMENTS)
    outputs, inputs = draw.randint(1, 150), draw.randint(1, 600)
    n_rows = draw.choice((draw.randint(1, 40), draw.randint(90, 200)))
    print(turn, isa, element, outputs, inputs, n_rows, flush=True)
    bias = linear.random(outputs) if draw.random() < 0.5 else None
    matrix = linear.Packed.of(element, linear.random(outputs, inputs), bias)
    rows = linear.random(n_rows, inputs, seed=turn)
    expected = rows.double() @ matrix.stored.T + (0 if bias is None else bias)
    result = linear.multiply(isa, rows, matrix, threads=draw.choice((1, 2)))
    allowed = linear.bound(isa, element, rows, matrix) + 2**-23 * expected.abs()
    assert ((result - expected).abs() <= allowed).all()
    if isa == "amx":  # sums in the order that is written out
        assert torch.equal(result, linear.multiply("wide_amx", rows, matrix))
    linear.multiply(isa, rows, matrix, matrix, draw.choice(list(linear.ACTIVATIONS)), result)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_shapes_under_the_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or shutil.which("cmake") is None:
        pytest.skip("no g++ or no cmake")
    if importlib.util.find_spec("nanobind") is None:
        pytest.skip("nanobind is not installed")
    configure = ["cmake", "-S", str(ROOT / "native"), "-B", str(tmp_path)]
    options = ("HOLDOVER_SANITIZE=ON", "HOLDOVER_WIDE=ON", f"Python_EXECUTABLE={sys.executable}")
    subprocess.run([*configure, *(f"-D{option}" for option in options)], check=True)
    subprocess.run(["cmake", "--build", str(tmp_path), "--parallel", "2"], check=True)
    [module] = tmp_path.glob("_native*.so")
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    sanitizers = {
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    code = WORKER.format(
        conformance=str(ROOT / "tests/conformance"),
        tests=str(ROOT / "tests"),
        module=str(module),
        seed=0,
        turns=96,
        decoders=24,
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | sanitizers, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-5000:]
