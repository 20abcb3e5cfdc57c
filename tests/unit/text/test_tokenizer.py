"""Ids and text against transformers, special tokens, and damaged or missing tokenizers."""

# ruff: noqa: RUF001 - ambiguous characters are what these texts are for

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from holdover.errors import ModelFileError, RequestError, UnsupportedModelError
from holdover.text import Tokenizer, load_tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\nnewlines\r\n\r\n\n\n   and   runs     of spaces",
    "It's they'll WE'RE don't",
    "12345 3.14159 1,000,000 x2 2x ²³ Ⅻ ٣٤",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 and ☃️",
    "日本語のテキスト。中文文本，한국어 텍스트",
    "Здравствуй мир, γειά σου, שלום, مرحبا",
    "def f(x):\n    return {k: v for k, v in x if v != 0}  # comment\n\n\nclass A:\n\tpass\n",
    "e\u0301 vs é, ﬁ ligature, \u200b zero width, \ufeff bom",
    "<|im_start|>user\nhi<|im_end|>\n<bos><eos><start_of_turn>model\n",
    "<h2>html</h2> <0x0A> <unused5> [multimodal]",
    "\x00\x01\x7f control \x1b[0m",
    "a" * 300 + "=" * 80 + "▁▁ literal lower blocks",
    "\U00010348\U0001f9ff rare 𝕏 𐍈",
]
NO_SURROGATES = st.characters(exclude_categories=["Cs"])


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_ids(
    smollm2: Tokenizer, published_smollm2: tokenizers.Tokenizer, text: str
) -> None:
    assert smollm2.encode(text) == published_smollm2.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", TEXTS)
def test_gemma3_ids(
    gemma3: Tokenizer, transformers_gemma3: tokenizers.Tokenizer, text: str
) -> None:
    ids = transformers_gemma3.encode(text, add_special_tokens=False).ids
    assert gemma3.encode(text) == [2, *ids]
    assert gemma3.encode(text, add_special_tokens=False) == ids


@settings(max_examples=150, deadline=None)
@given(st.text(NO_SURROGATES, max_size=60))
def test_any_text_has_transformers_ids(
    smollm2: Tokenizer,
    gemma3: Tokenizer,
    published_smollm2: tokenizers.Tokenizer,
    transformers_gemma3: tokenizers.Tokenizer,
    text: str,
) -> None:
    for ours, theirs in ((smollm2, published_smollm2), (gemma3, transformers_gemma3)):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == theirs.decode(ids)


def test_digits_are_the_only_difference_to_transformers(
    smollm2: Tokenizer, transformers_smollm2: tokenizers.Tokenizer
) -> None:
    """Where this test fails, transformers has learned the rule and its override can go."""
    for text in TEXTS:
        if not any(c.isnumeric() for c in text):
            assert smollm2.encode(text) == transformers_smollm2.encode(text).ids
    assert smollm2.encode("a  1") != transformers_smollm2.encode("a  1").ids


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_decoding_of_any_ids_is_transformers_decoding(
    smollm2: Tokenizer, published_smollm2: tokenizers.Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, smollm2.vocab_size - 1), max_size=30))
    assert smollm2.decode(ids) == published_smollm2.decode(ids)
    whole = published_smollm2.decode(ids, skip_special_tokens=False)
    assert smollm2.decode(ids, skip_special_tokens=False) == whole


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_gemma3_decoding_without_stray_bytes(
    gemma3: Tokenizer, transformers_gemma3: tokenizers.Tokenizer, data: st.DataObject
) -> None:
    """Stray byte tokens (238 to 493) give one U+FFFD per broken character here, per byte there."""
    ids = data.draw(st.lists(st.integers(500, gemma3.vocab_size - 1), max_size=30))
    assert gemma3.decode(ids) == transformers_gemma3.decode(ids)


def test_special_ids(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    assert smollm2.eos_token_ids == {0, 2}
    assert smollm2.bos_token_id == 1
    assert smollm2.prefix_ids == ()
    assert smollm2.token_text(2) == "<|im_end|>"
    assert smollm2.decode([1, 19556, 2]) == "Hello"
    assert smollm2.decode([1, 19556, 2], skip_special_tokens=False) == "<|im_start|>Hello<|im_end|>"
    assert gemma3.eos_token_ids == {1, 106}
    assert gemma3.prefix_ids == (2,)
    assert (smollm2.vocab_size, gemma3.vocab_size) == (49152, 262144)


def test_token_bytes(tokenizer: Tokenizer) -> None:
    text = "naïve 日本 😀 \n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.token_bytes(-1) == b""


def test_lone_surrogates_are_the_requests_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate") as caught:
        tokenizer.encode("a\ud800b", field_name="messages")
    assert caught.value.field == "messages"


# --- folders ----------------------------------------------------------------------------------


@dataclass
class Source:
    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


def small_backend() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<end>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    backend.enable_truncation(4)
    return backend


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_backend().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<s>", "lstrip": False},
                "eos_token": "</s>",
                "chat_template": "{{ bos_token }}{{ messages[0].content }}",
            }
        )
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [258]}))
    return tmp_path


def test_folder(folder: Path) -> None:
    tokenizer = load_tokenizer(Source(folder, {"eos_token_id": 257}))
    ids = tokenizer.encode("hello wörld")
    assert ids[0] == 256
    assert len(ids) == 13, "a truncation setting in tokenizer.json must not cut prompts"
    assert tokenizer.decode(ids) == "hello wörld"
    assert tokenizer.eos_token_ids == {257, 258}
    chat = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert chat == tokenizer.encode("hi"), "exactly one bos"


def test_template_file_comes_first(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("X{{ messages[0].content }}")
    tokenizer = load_tokenizer(Source(folder))
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "Xhi"
    assert tokenizer.encode_chat([{"role": "user", "content": "hi"}])[0] == 256


def test_folder_equals_gguf(smollm2: Tokenizer, tmp_path: Path) -> None:
    """A real vocabulary by both roads."""
    smollm2._backend.save(str(tmp_path / "tokenizer.json"))
    again = load_tokenizer(Source(tmp_path))
    for text in TEXTS:
        assert again.encode(text) == smollm2.encode(text)
        assert again.decode(again.encode(text)) == smollm2.decode(smollm2.encode(text))


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"generation_config\.json: cannot be read as JSON"):
        load_tokenizer(Source(folder))
    (folder / "generation_config.json").write_text('{"eos_token_id": 9999}')
    with pytest.raises(ModelFileError, match="special token id 9999; its vocabulary has 259"):
        load_tokenizer(Source(folder))
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text[: len(text) // 2])
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        load_tokenizer(Source(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: is missing"):
        load_tokenizer(Source(folder))


def header(**changes: Any) -> dict[str, Any]:
    base = {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tuple(sorted(pre_tokenizers.ByteLevel.alphabet())),
        "tokenizer.ggml.merges": (),
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def test_gguf_header_refusals() -> None:
    here = Path("m.gguf")
    assert load_tokenizer(Source(here, metadata=header())).encode("é1") != []
    with pytest.raises(ModelFileError, match="has no tokenizer"):
        load_tokenizer(Source(here, metadata={"general.architecture": "llama"}))
    with pytest.raises(UnsupportedModelError, match=r"pre 'mystery'.*qwen2"):
        load_tokenizer(Source(here, metadata=header(pre="mystery")))
    with pytest.raises(UnsupportedModelError, match="tokenizer 'bert'"):
        load_tokenizer(Source(here, metadata=header(model="bert")))
    with pytest.raises(ModelFileError, match="does not fit together"):
        load_tokenizer(Source(here, metadata=header(merges=("zz qq",))))
    with pytest.raises(ModelFileError, match="256 tokens but 2 token types"):
        load_tokenizer(Source(here, metadata=header(token_type=(1, 1))))
    with pytest.raises(ModelFileError, match="special token id 300"):
        load_tokenizer(Source(here, metadata=header(eos_token_id=300)))


def test_sentencepiece_of_the_llama_kind() -> None:
    """Scores decide the merges, a leading space is added and taken away, bytes fall back."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces = ["▁", "a", "b", "c", "ab", "bc", "▁ab", "▁a"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": (*tokens, *pieces),
        "tokenizer.ggml.scores": tuple(scores),
        "tokenizer.ggml.token_type": (2, 3, 3, *[6] * 256, *[1] * 8),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tokenizer = load_tokenizer(Source(Path("m.gguf"), metadata=metadata))

    def spelled(text: str) -> list[str]:
        return [tokenizer.token_text(i) for i in tokenizer.encode(text)]

    assert spelled("abc") == ["<s>", " a", "bc"]
    assert spelled("ab") == ["<s>", " ab"]
    assert tokenizer.encode("é") == [1, 259, 3 + 0xC3, 3 + 0xA9]
    for text in ("abc", "é b", "a  b", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
