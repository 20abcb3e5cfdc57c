"""The two real models give transformers' greedy tokens, several prompts in one flat batch.

The quick form checks each token against transformers' argmax over the same text in one pass, which
is the same claim token by token, and gives transformers the weights read here; in the slow one
transformers reads the file and generates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdover.geometry.base import planned_weights_bytes, read_geometry
from holdover.kernels._selection import AUTO, asked_backend
from holdover.kernels.native.availability import extension
from holdover.models._blueprint import Blueprint
from holdover.models._native import load_native
from holdover.models.base import Model, load_model
from holdover.spec.dtypes import DType
from holdover.spec.limits import Limits
from holdover.text import load_tokenizer
from holdover.weights import open_checkpoint

from .conftest import PagedCache

NEW_TOKENS = 64
FEW_TOKENS = 24  # in the quick form
WORDS = "The river ran past the old mill, and the miller counted the sacks of grain again. "
PROMPTS = [
    "The capital of France is",
    WORDS * 30,  # longer than Gemma's window of 512 tokens
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 5, 8, 13,",
    "Liebe Freunde, wir haben heute",
    "To make a good cup of tea, first",
    "Q: Why is the sky blue?\nA:",
    "The three laws of thermodynamics are",
    "{\"name\": \"Ada\", \"born\": 1815, \"known for\":",
]  # fmt: skip

# As published with the original weights, in place of transformers' reading of the GGUF header,
# which takes it a minute.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100000.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3_text": (
        "Gemma3TextConfig",
        {
            "vocab_size": 262144,
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
        },
    ),
}


class Real:
    """One model here and in transformers, in fp32."""

    def __init__(self, path: Path) -> None:
        self.checkpoint = open_checkpoint(path)
        geometry = read_geometry(self.checkpoint.config)
        self.model = load_model(self.checkpoint, geometry, DType.FP32)
        tokenizer = load_tokenizer(self.checkpoint)
        self.native: Model | None = None
        if extension() is not None and asked_backend(AUTO) != "reference":
            blueprint = Blueprint.of(extension(), geometry, "fp32")
            limits = Limits(len(PROMPTS), 300, 4096, 1)
            self.native = load_native(self.checkpoint, blueprint, DType.FP32, limits)
        self.prompts = [torch.tensor(tokenizer.encode(text)) for text in PROMPTS]

    def in_transformers(self) -> Any:
        """transformers' model of the published config, with the tensors that were read here."""
        import transformers
        from transformers.initialization import no_init_weights

        kind, config = PUBLISHED[self.checkpoint.config["model_type"]]
        with no_init_weights():
            hf = transformers.AutoModelForCausalLM.from_config(
                getattr(transformers, kind)(**config), dtype=torch.float32
            )
        names = self.checkpoint.tensors
        weights = {name: self.checkpoint.load(name, torch.float32) for name in names}
        missing, unknown = hf.load_state_dict(weights, strict=False)
        assert (missing, unknown) == (["lm_head.weight"], [])
        hf.tie_weights()
        return hf.eval()

    def generating(self) -> Any:
        from transformers import AutoModelForCausalLM

        path = self.checkpoint.path
        return AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path"])
def real(request: pytest.FixtureRequest) -> Real:
    return Real(request.getfixturevalue(request.param))


def greedy(
    model: Model, cache: Any, prompts: list[Tensor], step_tokens: int, new_tokens: int
) -> list[Tensor]:
    """Continuations of all prompts at once: prompts in pieces, then one token each per step."""
    texts = [prompt.tolist() for prompt in prompts]
    done = [0] * len(texts)
    goals = [len(text) + new_tokens for text in texts]
    while any(len(text) < goal for text, goal in zip(texts, goals, strict=True)):
        turn, left = [], step_tokens
        for sequence, text in enumerate(texts):
            n = min(len(text) - done[sequence], left)
            if n and len(text) < goals[sequence]:
                turn.append((sequence, n))
                left -= n
        tokens = [texts[s][p] for s, n in turn for p in range(done[s], done[s] + n)]
        positions = [p for s, n in turn for p in range(done[s], done[s] + n)]
        ends = torch.tensor([n for _, n in turn]).cumsum(0) - 1
        step = cache.begin(turn, dict(enumerate(done)))
        rows = model.forward(torch.tensor(tokens), torch.tensor(positions), step, ends)
        for (sequence, n), token in zip(turn, rows.argmax(-1).tolist(), strict=True):
            done[sequence] += n
            if done[sequence] == len(texts[sequence]):
                texts[sequence].append(token)
    return [torch.tensor(text[len(prompt) :]) for text, prompt in zip(texts, prompts, strict=True)]


def generated(
    real: Real,
    prompts: list[Tensor],
    new_tokens: int,
    backend: str | None = None,
    model: Model | None = None,
) -> list[Tensor]:
    # A new block per sequence and group may be begun and never filled.
    capacity_tokens = sum(len(prompt) + new_tokens + 16 for prompt in prompts)
    cache = PagedCache(
        real.model.geometry, block_tokens=16, capacity_tokens=capacity_tokens, backend=backend
    )
    return greedy(model or real.model, cache, prompts, 300, new_tokens)


def test_weights_are_as_planned(real: Real) -> None:
    assert real.model.weights_nbytes == planned_weights_bytes(real.model.geometry, DType.FP32)


@pytest.mark.timeout(900)
@torch.no_grad()
def test_three_prompts(real: Real) -> None:
    prompts = real.prompts[:3]
    assert len(prompts[1]) > 512
    if real.checkpoint.config["model_type"] == "llama":  # it has no window to go past
        prompts[1] = prompts[1][:128]
    hf = real.in_transformers()
    found = generated(real, prompts, FEW_TOKENS)
    for prompt, tokens in zip(prompts, found, strict=True):
        assert len(tokens) == FEW_TOKENS
        whole = torch.cat((prompt, tokens))[None, :-1]
        logits = hf(input_ids=whole, logits_to_keep=FEW_TOKENS).logits[0]
        assert tokens.tolist() == logits.argmax(-1).tolist()
    again = generated(real, prompts, FEW_TOKENS, "reference")
    for tokens, other in zip(found, again, strict=True):
        assert tokens.tolist() == other.tolist()
    if real.native is not None:
        native = generated(real, prompts, FEW_TOKENS, model=real.native)
        for tokens, other in zip(found, native, strict=True):
            assert tokens.tolist() == other.tolist()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@torch.no_grad()
def test_ten_prompts(real: Real) -> None:
    from transformers import GenerationConfig

    hf = real.generating()
    # No end token: 64 tokens are compared whatever they are.
    hf.generation_config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False)
    found = generated(real, real.prompts, NEW_TOKENS)
    if real.native is not None:
        native = generated(real, real.prompts, NEW_TOKENS, model=real.native)
        assert [tokens.tolist() for tokens in native] == [tokens.tolist() for tokens in found]
    for prompt, tokens in zip(real.prompts, found, strict=True):
        whole = hf.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]))[0]
        assert len(whole) == len(prompt) + NEW_TOKENS
        assert tokens.tolist() == whole[len(prompt) :].tolist()
