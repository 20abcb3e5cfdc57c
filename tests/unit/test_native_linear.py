"""Products with panels of weights against float64, and against themselves bit for bit.

The reference takes what is stored (rounded or quantised weights, unpacked again) and sums it in
float64, so that every element is held to the rounding of its sum alone. An element must not depend
on the rows beside it or on how a product is cut, and what is beside it may be no number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from holdover.kernels.native.availability import extension
from holdover.kernels.native.threads import torch_parallel

NATIVE = extension()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native kernels are not built")
ISAS = [] if NATIVE is None else NATIVE.isas()
ELEMENTS = ("fp32", "bf16", "int8")
SHAPES = (
    (1, 1),
    (5, 3),
    (16, 2),
    (17, 31),
    (48, 64),
    (100, 577),
    (130, 256),
    (33, 1030),
    (70, 513),
)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 70)
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu": torch.nn.functional.gelu,
}


@dataclass(frozen=True)
class Packed:
    """A matrix as it is stored, and what is stored there as [outputs, inputs] in float64."""

    matrix: Any
    element: str
    stored: Tensor
    held: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, element: str, weights: Tensor, bias: Tensor | None = None, pieces: int = 1
    ) -> Packed:
        outputs, inputs = weights.shape
        memory = torch.full(
            (NATIVE.matrix_bytes(element, outputs, inputs) + 64,), 0x7F, dtype=torch.uint8
        )
        offset = -memory.data_ptr() % 64
        start = 0
        for piece in weights.tensor_split(pieces):
            piece = piece.contiguous()
            address = memory.data_ptr() + offset
            NATIVE.pack(element, piece.data_ptr(), len(piece), outputs, inputs, start, address)
            start += len(piece)
        matrix = NATIVE.Matrix(
            element,
            outputs,
            inputs,
            memory.data_ptr() + offset,
            0 if bias is None else bias.data_ptr(),
        )
        stored = torch.zeros(outputs, inputs)
        for output in range(outputs):
            NATIVE.unpack_row("portable", matrix, output, stored[output].data_ptr())
        held = (memory,) if bias is None else (memory, bias)
        return cls(matrix, element, stored.double(), held)


def operand(isa: str, rows: Tensor, matrix: Packed) -> tuple[Any, Tensor]:
    products = NATIVE.Products(isa, [matrix.matrix], [], 0, 1)
    n_bytes = NATIVE.operand_bytes(matrix.element, rows.shape[1])
    prepared = torch.full((len(rows) * n_bytes + 64,), 0x7F, dtype=torch.uint8)
    prepared = prepared[-prepared.data_ptr() % 64 :]
    products.prepare(rows.data_ptr(), len(rows), prepared.data_ptr())
    return products, prepared


def multiply(
    isa: str,
    rows: Tensor,
    matrix: Packed,
    gate: Packed | None = None,
    activation: str = "none",
    result: Tensor | None = None,
    cut: tuple[tuple[int, int], tuple[int, int]] | None = None,
    threads: int = 1,
) -> Tensor:
    """[rows, outputs]; outside the cut what `result` held, NaN where none is given."""
    outputs = len(matrix.stored)
    _, prepared = operand(isa, rows, matrix)
    add = result is not None
    into = torch.full((len(rows), outputs + 3), torch.nan)  # a stride of its own
    if result is not None:
        into[:, :outputs] = result
    products = NATIVE.Products(
        isa,
        [matrix.matrix],
        [] if gate is None else [gate.matrix],
        torch_parallel() if threads > 1 else 0,
        threads,
    )
    row_range, panel_range = cut or ((0, len(rows)), (0, outputs))
    products.multiply(
        prepared.data_ptr(),
        row_range,
        panel_range,
        into.data_ptr(),
        into.stride(0),
        add,
        activation,
    )
    assert into[:, outputs:].isnan().all(), "written beside the result"
    return into[:, :outputs]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bound(isa: str, element: str, rows: Tensor, matrix: Packed) -> Tensor:
    """What an element may be off: rounding of inputs and of as many sums, by the norms."""
    rounds = element == "bf16" and NATIVE.rounds_rows(isa)
    inputs = 2**-8 if rounds else 2**-15 if element == "int8" else 0.0
    sums = 2**-23 * max(4, rows.shape[1]) ** 0.5
    norms = rows.double().norm(dim=1)[:, None] * matrix.stored.norm(dim=1)[None]
    return norms * (inputs + sums) + 1e-30


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_float64(shape: tuple[int, int], element: str, isa: str) -> None:
    outputs, inputs = shape
    bias = random(outputs, seed=3)
    matrix = Packed.of(element, random(outputs, inputs, seed=1), bias)
    for n_rows in ROWS:
        rows = random(n_rows, inputs, seed=n_rows) * torch.logspace(-3, 3, n_rows)[:, None]
        expected = rows.double() @ matrix.stored.T + bias
        off = (multiply(isa, rows, matrix).double() - expected).abs()
        allowed = bound(isa, element, rows, matrix) + 2**-23 * expected.abs()
        assert (off <= allowed).all(), (n_rows, (off / allowed).max())


@pytest.mark.parametrize("element", ELEMENTS)
def test_stored_weights_are_near_those_given(element: str) -> None:
    weights = random(37, 301) * torch.logspace(-20, 20, 37)[:, None]
    weights[5] = 0
    stored = Packed.of(element, weights, pieces=4).stored
    if element == "fp32":
        assert torch.equal(stored, weights.double())
    elif element == "bf16":
        assert torch.equal(stored, weights.bfloat16().double())
    else:
        step = weights.double().abs().amax(dim=1, keepdim=True) / 127
        assert ((stored - weights).abs() <= step * 0.5001).all()
        assert torch.equal(stored.abs().amax(dim=1) > 0, weights.abs().amax(dim=1) > 0)


@pytest.mark.parametrize("isa", ISAS)
def test_int8_with_15_bit_inputs_is_int8_with_exact_inputs(isa: str) -> None:
    """1e-4 of the norms: the rows' own quantisation does not show beside that of the weights."""
    rows, weights = random(20, 1536, seed=1), random(64, 1536, seed=2)
    rows[:, 100] *= 40.0  # an outlier spoils no more than its segment of 256
    matrix = Packed.of("int8", weights)
    expected = rows.double() @ matrix.stored.T
    norms = rows.double().norm(dim=1)[:, None] * matrix.stored.norm(dim=1)
    assert ((multiply(isa, rows, matrix) - expected).abs() / norms).max() < 1e-4


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_an_element_is_the_same_bits_in_any_company(element: str, isa: str) -> None:
    for outputs, inputs in ((100, 577), (330, 64)):
        matrix = Packed.of(element, random(outputs, inputs, seed=1), random(outputs, seed=2))
        gate = Packed.of(element, random(outputs, inputs, seed=3), random(outputs, seed=4))
        rows = random(70, inputs, seed=5)
        for activation, beside in (("none", None), ("silu", gate)):
            whole = multiply(isa, rows, matrix, beside, activation)
            alone = [multiply(isa, rows[i : i + 1], matrix, beside, activation) for i in range(70)]
            assert torch.equal(whole, torch.cat(alone))
            for n in (2, 3, 5, 7, 8, 11, 19):
                assert torch.equal(
                    multiply(isa, rows[:n].clone(), matrix, beside, activation), whole[:n]
                )
            for row, n, panel, m in ((0, 70, 1, 2), (3, 9, 2, 7), (11, 6, 0, 1), (1, 13, 3, 5)):
                part = multiply(
                    isa, rows, matrix, beside, activation, cut=((row, row + n), (panel, panel + m))
                )
                inside = torch.zeros(70, outputs, dtype=torch.bool)
                inside[row : row + n, 16 * panel : 16 * (panel + m)] = True
                assert torch.equal(part[inside], whole[inside])
                assert part[~inside].isnan().all(), "written outside its cut"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_threads_change_nothing(element: str, isa: str) -> None:
    matrix = Packed.of(element, random(700, 300, seed=1))
    rows = random(9, 300, seed=2)
    assert torch.equal(multiply(isa, rows, matrix, threads=2), multiply(isa, rows, matrix))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gates_and_sums_with_what_is_there(activation: str, element: str, isa: str) -> None:
    outputs, inputs, n_rows = 53, 96, 11
    matrix = Packed.of(element, random(outputs, inputs, seed=1) / 10, random(outputs, seed=2))
    gate = Packed.of(element, random(outputs, inputs, seed=3) / 3, random(outputs, seed=4))
    rows, before = random(n_rows, inputs, seed=5), random(n_rows, outputs, seed=6)
    rows[0] *= 100  # far into both tails
    up = multiply(isa, rows, matrix).double()
    inner = multiply(isa, rows, gate).double()
    expected = ACTIVATIONS[activation](inner) * up
    allowed = 2e-6 * (up.abs() * inner.abs().clamp(min=1.0) + 1.0)
    result = multiply(isa, rows, matrix, gate, activation)
    assert ((result - expected).abs() <= allowed).all(), (result - expected).abs().max()
    assert torch.equal(
        multiply(isa, rows, matrix, result=before), before + multiply(isa, rows, matrix)
    )
    assert torch.equal(multiply(isa, rows, matrix, gate, activation, before), before + result)


@pytest.mark.parametrize("isa", ISAS)
def test_activations_over_all_magnitudes(isa: str) -> None:
    """One input and the weight 1: the gate's sum is any number that is asked for."""
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.logspace(-30, 37, 400)])
    x = torch.cat([x, -torch.logspace(-30, 37, 400), torch.zeros(1)])
    one = Packed.of("fp32", torch.ones(1, 1))
    for name, function in ACTIVATIONS.items():
        unit = Packed.of("fp32", torch.zeros(1, 1), torch.ones(1))
        got = multiply(isa, x[:, None], unit, one, name)[:, 0].double()
        expected = function(x.double())
        assert ((got - expected).abs() <= 1e-6 * expected.abs() + 3e-7).all(), name


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_what_is_no_number_stays_in_its_row(wrong: float, element: str, isa: str) -> None:
    matrix = Packed.of(element, random(40, 300, seed=1))
    rows = random(13, 300, seed=2)
    clean = multiply(isa, rows, matrix)
    rows[4, 299] = wrong
    result = multiply(isa, rows, matrix)
    others = [i for i in range(13) if i != 4]
    assert torch.equal(result[others], clean[others])
    assert not result[4].isfinite().any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_a_row_is_unpacked_as_it_is_stored(element: str, isa: str) -> None:
    matrix = Packed.of(element, random(21, 37))
    row = torch.full((38,), torch.nan)
    for output in range(21):
        NATIVE.unpack_row(isa, matrix.matrix, output, row.data_ptr())
        assert torch.equal(row[:37].double(), matrix.stored[output])
        assert row[37].isnan()


@pytest.mark.parametrize("element", ELEMENTS)
def test_bytes_are_those_of_the_weights(element: str) -> None:
    size = {"fp32": 4, "bf16": 2, "int8": 1}[element]
    scales = 4 * 576 if element == "int8" else 0
    assert NATIVE.matrix_bytes(element, 576, 1536) == 576 * 1536 * size + scales
