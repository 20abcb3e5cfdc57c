"""Products for AVX-512 with its intrinsics emulated by SIMDe: right on machines without them.

The wide build has the lanes but writes the intrinsics out; here the source is compiled as it
is, each intrinsic being SIMDe's function. Skipped where its header or a compiler is missing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

NATIVE = Path(__file__).parents[2] / "native"
HEADER = Path("/usr/include/simde/x86/avx512.h")
ELEMENTS = ("fp32", "bf16", "int8")
# SIMDe looks at the macros to see what is there, so they are set after its headers.
SOURCE = """
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#undef _mm512_madd_epi16  // Debian's 0.7.4 gives it the arguments of another
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#include "types.hpp"
#define LANES 16
#define BF16_PAIRS 0
namespace avx512 {
using namespace holdover;
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;
#include "vec.hpp"
#include "codecs.hpp"
#include "linear.hpp"
}
#undef BF16_PAIRS
#define BF16_PAIRS 1
#define __AVX512BF16__ 1
#define __AVX512VNNI__ 1
#undef INLINE
namespace avx512_bf16 {
using namespace holdover;
constexpr int TILE_ROWS = 8, MOST_SUMS = 24;
#include "vec.hpp"
#include "codecs.hpp"
#include "linear.hpp"
}

extern "C" void multiply(int bf16_isa, int element, const float* rows, int n_rows,
                         const float* weights, int outputs, int inputs, float* result) {
  using namespace holdover;
  auto prepare = bf16_isa ? avx512_bf16::prepare : avx512::prepare;
  Element e = Element(element);
  std::vector<uint8_t> memory(matrix_bytes(e, outputs, inputs));
  pack(e, weights, outputs, outputs, inputs, 0, memory.data());
  Matrix m = packed(e, outputs, inputs, memory.data(), nullptr);
  std::vector<uint8_t> operand(n_rows * operand_bytes(e, inputs));
  for (int r = 0; r < n_rows; ++r)
    prepare(rows + r * inputs, inputs, e, operand.data() + r * operand_bytes(e, inputs));
  Product p{&m, nullptr, operand.data(), result, outputs, false, Activation::none};
  (bf16_isa ? avx512_bf16::multiply : avx512::multiply)(p, 0, n_rows, 0, m.n_panels());
}
"""
Multiply = Callable[[str, str, Tensor, Tensor], Tensor]


@pytest.fixture(scope="module")
def multiply(tmp_path_factory: pytest.TempPathFactory) -> Multiply:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or not HEADER.exists():
        pytest.skip("no g++ or no SIMDe (libsimde-dev)")
    folder = tmp_path_factory.mktemp("simde")
    source, library = folder / "emulated.cpp", folder / "emulated.so"
    source.write_text(SOURCE)
    options = "-std=gnu++20 -O0 -fPIC -shared -mavx2 -mfma -mf16c -ffp-contract=off -Wno-psabi"
    files = [str(source), str(NATIVE / "matrix.cpp"), "-o", str(library)]
    command = [compiler, *options.split(), f"-I{NATIVE}", *files]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).multiply

    def call(isa: str, element: str, rows: Tensor, weights: Tensor) -> Tensor:
        result = torch.full((len(rows), len(weights)), torch.nan)
        function(
            isa == "avx512_bf16",
            ELEMENTS.index(element),
            ctypes.c_void_p(rows.data_ptr()),
            len(rows),
            ctypes.c_void_p(weights.data_ptr()),
            *weights.shape,
            ctypes.c_void_p(result.data_ptr()),
        )
        return result

    return call


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx512", "avx512_bf16"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_products_with_emulated_intrinsics(multiply: Multiply, element: str, isa: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for outputs, inputs, n_rows in ((40, 300, 9), (130, 577, 21), (16, 2, 1), (70, 33, 3)):
        weights = torch.randn(outputs, inputs, generator=generator)
        rows = torch.randn(n_rows, inputs, generator=generator)
        stored, taken, error = weights.double(), rows.double(), 0.0
        if element == "bf16":
            stored = weights.bfloat16().double()
            taken = rows.bfloat16().double() if isa == "avx512_bf16" else taken
        if element == "int8":
            scale = weights.abs().amax(dim=1, keepdim=True) / 127
            stored, error = ((weights / scale).round() * scale).double(), 2**-15
        result = multiply(isa, element, rows, weights)
        norms = taken.norm(dim=1)[:, None] * stored.norm(dim=1)[None]
        off = (result - taken @ stored.T).abs() / norms
        assert off.max() < error + 2**-23 * max(4, inputs) ** 0.5
        if n_rows > 1:
            alone = multiply(isa, element, rows[1:2].clone(), weights)
            assert torch.equal(alone[0], result[1])
