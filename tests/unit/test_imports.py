"""The import order, read from every module's syntax tree: imports inside functions count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdover

ROOT = Path(holdover.__file__).parent

# Rooms of one line may not import each other; those of a later line may import the earlier ones.
LAYERS = (
    ("errors", "units", "files", "registry", "config", "html_page"),
    ("spec",),
    ("codecs", "geometry", "weights", "text"),
    ("plan", "cache", "kernels"),
    ("models",),
    ("engine",),
    ("server", "bench", "quality"),
    ("simulate",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
BASE = LAYERS[0]  # single files, which may read each other
TORCH_FREE = ("spec", "geometry", "plan", *LAYERS[0])
# Asks transformers about a model type that the table of class defaults does not know, then only.
ON_DEMAND = ("_installed.py",)
LIBRARIES = frozenset({"torch", "transformers", "safetensors", "gguf", "fastapi", "uvicorn"})


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, module, whether it is for annotations only) of every import of a file."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield node.lineno, name, id(node) in typing_only


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_upwards(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    assert room in LEVEL, f"{room} has no place in the import order; give it one in LAYERS"
    for line, name, _ in imports(path):
        parts = name.split(".")
        if parts[0] != "holdover" or len(parts) == 1 or parts[1] not in LEVEL:
            continue
        other = parts[1]
        allowed = other == room or LEVEL[other] < LEVEL[room] or (room in BASE and other in BASE)
        assert allowed, (
            f"{path.relative_to(ROOT)}:{line} imports {other}, which stands above {room}"
        )


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if room_of(p) in TORCH_FREE and p.name not in ON_DEMAND],
    ids=lambda p: str(p.name),
)
def test_planning_rooms_name_no_heavy_library(path: Path) -> None:
    for line, name, typing_only in imports(path):
        assert typing_only or name.split(".")[0] not in LIBRARIES, f"{path}:{line} imports {name}"


def test_every_room_has_a_place() -> None:
    rooms = {room_of(path) for path in modules()} - {"__init__"}
    assert rooms <= set(LEVEL)


@pytest.mark.parametrize(
    "statement",
    [
        "import holdover.cli",
        "import holdover.engine.planning",
        "import holdover.simulate.ask",
        "from holdover.engine import api",
        "from holdover.codecs.base import uniform; uniform('bf16')",
        "from holdover.kernels import base, reference",
        "from holdover.weights import open_checkpoint; open_checkpoint('smollm2')",
        "from holdover.geometry.base import supported_architectures as s; s()",
    ],
)
def test_what_plan_needs_does_not_load_torch(statement: str) -> None:
    code = f"import sys; {statement}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
