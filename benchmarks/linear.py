"""Linear layers alone: every matrix of SmolLM2-135M, natively and in torch, in the same rounds.

    python benchmarks/linear.py [--rows 1,4,16,512] [--elements fp32,bf16,int8] [--rounds 10]

The 121 matrices of a step (30 layers and the head) are multiplied one after another with as many
rows. Printed are the median, the fastest and the slowest round, the weights' bytes per second and
their share of the bandwidth at which the same threads read plain memory, and operations per second.
"""

from __future__ import annotations

import argparse
import mmap
import time
from typing import Any

import torch
from rounds import Line, measure, plain_memory

from holdover.cache.arena import host_bytes
from holdover.kernels.native.availability import chosen_isa, extension
from holdover.kernels.native.threads import torch_parallel

LAYERS, VOCAB = 30, 49152
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # of a layer: outputs, inputs
EVERY = SHAPES * LAYERS + ((VOCAB, 576),)
WIDEST = max(inputs for _, inputs in EVERY)
FLOPS = 2 * sum(outputs * inputs for outputs, inputs in EVERY)


def small_pages(n_bytes: int) -> torch.Tensor:
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def native_line(element: str, n_rows: int, threads: int, isa: str, pages: str) -> Line:
    module = extension()
    assert module is not None, "the native kernels are not built"
    sizes = [module.matrix_bytes(element, *shape) for shape in EVERY]
    memory = host_bytes(sum(sizes), "weights") if pages == "huge" else small_pages(sum(sizes))
    matrices, at = [], memory.data_ptr()
    for (outputs, inputs), n_bytes in zip(EVERY, sizes, strict=True):
        weights = torch.randn(outputs, inputs)
        module.pack(element, weights.data_ptr(), outputs, outputs, inputs, 0, at)
        matrices.append(module.Matrix(element, outputs, inputs, at, 0))
        at += n_bytes
    products: list[Any] = []
    for inputs in sorted({inputs for _, inputs in EVERY}):
        same = [m for m, shape in zip(matrices, EVERY, strict=True) if shape[1] == inputs]
        products.append((inputs, module.Products(isa, same, [], torch_parallel(), threads)))
    rows = torch.randn(n_rows, WIDEST)
    operand = host_bytes(n_rows * module.operand_bytes(element, WIDEST), "rows")
    result = host_bytes(4 * n_rows * VOCAB, "results")

    def run(held: object = (memory, rows)) -> None:  # C++ has only their addresses
        for _, one in products:
            one.prepare(rows.data_ptr(), n_rows, operand.data_ptr())
            address = operand.data_ptr(), (0, n_rows), (0, VOCAB)
            one.multiply(*address, result.data_ptr(), VOCAB, False, "none")

    name = f"native {element}" + ("" if pages == "huge" else ", small pages")
    return Line(name, sum(sizes), run, time.perf_counter, FLOPS * n_rows)


def torch_line(dtype: torch.dtype, n_rows: int) -> Line:
    weights = [torch.randn(outputs, inputs).to(dtype) for outputs, inputs in EVERY]
    rows = {inputs: torch.randn(n_rows, inputs).to(dtype) for _, inputs in EVERY}

    def run() -> None:
        for weight in weights:
            torch.nn.functional.linear(rows[weight.shape[1]], weight)

    n_bytes = sum(weight.nbytes for weight in weights)
    name = f"torch {str(dtype).removeprefix('torch.')}"
    return Line(name, n_bytes, run, time.perf_counter, FLOPS * n_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,4,16,512")
    parser.add_argument("--elements", default="fp32,bf16,int8")
    parser.add_argument("--torch", default="float32,bfloat16")
    parser.add_argument("--pages", default="huge", help="huge, small or both")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    module = extension()
    assert module is not None, "the native kernels are not built"
    isa = chosen_isa(module)
    for n_rows in map(int, asked.rows.split(",")):
        print(f"{n_rows} rows, {asked.threads} threads, {isa}")
        lines = [
            native_line(element, n_rows, asked.threads, isa, pages)
            for element in filter(None, asked.elements.split(","))
            for pages in ("huge", "small")
            if asked.pages in (pages, "both")
        ]
        names = filter(None, asked.torch.split(","))
        lines += [torch_line(getattr(torch, name), n_rows) for name in names]
        rounds = asked.rounds if n_rows < 100 else max(2, asked.rounds // 5)
        with torch.inference_mode():
            measure(lines, rounds, plain_memory(time.perf_counter))


if __name__ == "__main__":
    main()
