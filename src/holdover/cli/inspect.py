"""`holdover inspect`: what a model file contains, from its header alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdover.cli.options import plain_command
from holdover.cli.screen import print_json, stdout_console
from holdover.errors import HoldoverError
from holdover.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from holdover.geometry.base import Geometry
    from holdover.weights import Checkpoint, TensorInfo

INSPECT_SCHEMA = "holdover.inspect/1"


def register(app: typer.Typer) -> None:
    @plain_command(app, "inspect")
    def inspect(
        model: Annotated[
            str, typer.Argument(help="GGUF file, safetensors folder, or built-in name.")
        ],
        tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
        json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
    ) -> None:
        """Show what a model file contains.

        Architecture, geometry, tensors, tokenizer and quantisation, from the header alone.
        """
        from holdover.weights import open_header

        report = inspect_json(open_header(model), tensors)
        if json:
            print_json(report)
        else:
            _print(stdout_console(), report)


def inspect_json(checkpoint: Checkpoint, with_tensors: bool = False) -> dict[str, Any]:
    """What cannot be read stands as {"error": why}: the rest of the file is shown all the same."""
    infos = checkpoint.tensors
    report: dict[str, Any] = {
        "schema": INSPECT_SCHEMA,
        "path": str(checkpoint.path),
        "format": "gguf" if checkpoint.metadata else "safetensors",
        "name": checkpoint.metadata.get("general.name"),
        "licence": checkpoint.metadata.get("general.license"),
        "geometry": _geometry(checkpoint),
        "tokenizer": _tokenizer(checkpoint),
        "parameters": sum(info.n_elements for info in infos.values()),
        "tensors_bytes": sum(info.n_bytes for info in infos.values()),
        "types": [share.json() for share in _shares(infos.values())],
    }
    if with_tensors:
        report["tensors"] = [
            {
                "name": name,
                "shape": list(info.shape),
                "type": info.dtype_name,
                "tensor_bytes": info.n_bytes,
            }
            for name, info in infos.items()
        ]
    return report


@dataclass(slots=True)
class _Share:
    """All tensors of one stored type."""

    type_name: str
    tensors: int = 0
    elements: int = 0
    n_bytes: int = 0

    def json(self) -> dict[str, Any]:
        return {
            "type": self.type_name,
            "tensors": self.tensors,
            "elements": self.elements,
            "tensors_bytes": self.n_bytes,
            "bits_per_element": 8 * self.n_bytes / self.elements if self.elements else 0.0,
        }


def _shares(infos: Iterable[TensorInfo]) -> list[_Share]:
    shares: dict[str, _Share] = {}
    for info in infos:
        share = shares.setdefault(info.dtype_name, _Share(info.dtype_name))
        share.tensors += 1
        share.elements += info.n_elements
        share.n_bytes += info.n_bytes
    return sorted(shares.values(), key=lambda share: -share.n_bytes)


def _geometry(checkpoint: Checkpoint) -> dict[str, Any]:
    from holdover.geometry.base import read_geometry

    try:
        geometry = read_geometry(checkpoint.config)
    except HoldoverError as error:
        return {"error": str(error)}
    return {
        "architecture": geometry.architecture,
        "family": geometry.family,
        "layers": len(geometry.layers),
        "residency": _residencies(geometry),
        "hidden_size": geometry.hidden_size,
        "intermediate_size": geometry.intermediate_size,
        "query_heads": geometry.query_heads,
        "kv_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
        "vocab_size": geometry.vocab_size,
        "max_context_tokens": geometry.max_context_tokens,
        "tied_embeddings": geometry.tied_embeddings,
        "rope": [{"kind": r.kind, "theta": r.theta, "factor": r.factor} for r in geometry.ropes],
    }


def _residencies(geometry: Geometry) -> dict[str, list[int]]:
    from holdover.plan.report import residency_text

    layers: dict[str, list[int]] = {}
    for index, layer in enumerate(geometry.layers):
        layers.setdefault(residency_text(layer.residency), []).append(index)
    return layers


def _tokenizer(checkpoint: Checkpoint) -> dict[str, Any]:
    from holdover.text import load_tokenizer

    try:
        tokenizer = load_tokenizer(checkpoint)
    except HoldoverError as error:
        return {"error": str(error)}
    return {
        "kind": checkpoint.metadata.get("tokenizer.ggml.model", "tokenizer.json"),
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_ids": sorted(tokenizer.eos_token_ids),
        "chat_template": tokenizer.chat_template is not None,
    }


def _print(console: Console, report: dict[str, Any]) -> None:
    from holdover.plan.report import ranges_text

    def line(name: str, value: Any) -> None:
        print(f"{name:<15}{value}")

    line("file", f"{report['path']} ({report['format']})")
    if report["name"]:
        line("name", report["name"] + (f", {report['licence']}" if report["licence"] else ""))
    geometry = report["geometry"]
    if "error" in geometry:
        line("geometry", geometry["error"])
    else:
        line("architecture", f"{geometry['architecture']} (family {geometry['family']})")
        kinds = (
            f"{len(layers)} {kind} ({ranges_text(tuple(layers))})"
            for kind, layers in geometry["residency"].items()
        )
        line("layers", f"{geometry['layers']}: {', '.join(kinds)}")
        heads = f"{geometry['query_heads']} query, {geometry['kv_heads']} KV"
        line("heads", f"{heads}, {geometry['head_dim']} wide")
        widths = f"hidden {geometry['hidden_size']}, MLP {geometry['intermediate_size']}"
        tied = ", embeddings tied" if geometry["tied_embeddings"] else ""
        line("sizes", f"{widths}, vocabulary {geometry['vocab_size']:,}{tied}")
        ropes = (
            f"{r['kind']} theta {r['theta']:g} factor {r['factor']:g}" for r in geometry["rope"]
        )
        line("rope", "; ".join(ropes))
        line("context", f"{geometry['max_context_tokens']:,} tokens")
    tokenizer = report["tokenizer"]
    if "error" in tokenizer:
        line("tokenizer", tokenizer["error"])
    else:
        line("tokenizer", f"{tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens")
        line("chat template", "yes" if tokenizer["chat_template"] else "none")
    total = format_bytes(report["tensors_bytes"])
    line("parameters", f"{report['parameters']:,} in {total} ({report['tensors_bytes']:,} bytes)")
    for share in report["types"]:
        noun = "tensor " if share["tensors"] == 1 else "tensors"
        sizes = f"{share['tensors']:>4} {noun}  {share['elements']:>15,} elements"
        bits = f"{share['bits_per_element']:.2f} bits each"
        line(f"  {share['type']}", f"{sizes}  {format_bytes(share['tensors_bytes']):>10}  {bits}")
    for tensor in report.get("tensors", ()):
        shape = " x ".join(map(str, tensor["shape"]))
        print(f"{tensor['name']:<55} {tensor['type']:<6} {tensor['tensor_bytes']:>13,}  {shape}")
