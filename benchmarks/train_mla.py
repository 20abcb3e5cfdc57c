"""Trains a small model with latent attention and experts from scratch, to measure a cache with.

    python benchmarks/train_mla.py FOLDER [--steps 500] [--threads 2]
    holdover quality FOLDER --kv bf16,int8,int4 --context 512 --recall 0

The architecture is DeepSeek-V2-Lite's (transformers' class, random weights), the text Python's own
help topics. What `holdover quality` scores comes first in that text and is left out here. FOLDER
gets config.json, model.safetensors and a tokenizer of 1,024 byte pairs trained on the same text.
500 steps take some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT_TOKENS, BATCH, VOCABULARY, END = 512, 4, 1024, "<end>"
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}\n{% endfor %}"  # it goes on with a text
)
HELD_OUT_CHARACTERS = 100_000  # more than `holdover quality` reads
MOST_RATE, WARMUP_STEPS = 3e-3, 50


def texts() -> tuple[str, str]:
    """(held out, to train on), in the order in which `holdover quality` reads them."""
    from pydoc_data.topics import topics

    whole = "\n\n".join(topics[name] for name in sorted(topics))
    return whole[:HELD_OUT_CHARACTERS], whole[HELD_OUT_CHARACTERS:]


def train_tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def new_model(end: int) -> Any:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        q_lora_rank=None,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
    )
    torch.manual_seed(0)
    model = DeepseekV2ForCausalLM(config)
    model.set_experts_implementation("eager")
    return model


def rate(step: int, steps: int) -> float:
    """Up in a line, then down along a cosine."""
    if step < WARMUP_STEPS:
        return MOST_RATE * (step + 1) / WARMUP_STEPS
    return MOST_RATE * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)


def train(model: Any, tokens: torch.Tensor, held_out: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=MOST_RATE, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    begun = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        starts = torch.randint(len(tokens) - CONTEXT_TOKENS, (BATCH,), generator=generator)
        batch = torch.stack([tokens[at : at + CONTEXT_TOKENS] for at in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            score = perplexity(model, held_out)
            seconds = time.perf_counter() - begun
            print(
                f"step {step + 1}: loss {loss:.3f}, held out {score:.2f}, {seconds:.0f} s",
                flush=True,
            )


@torch.no_grad()
def perplexity(model: Any, tokens: torch.Tensor) -> float:
    batch = tokens[: 8 * CONTEXT_TOKENS].view(8, CONTEXT_TOKENS)
    return float(model(input_ids=batch, labels=batch).loss.exp())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    held_out, text = texts()
    tokenizer = train_tokenizer(text)
    model = new_model(tokenizer.token_to_id(END))
    n_parameters = sum(weight.numel() for weight in model.parameters())
    ids, held_out_ids = (torch.tensor(tokenizer.encode(part).ids) for part in (text, held_out))
    print(f"{n_parameters:,} parameters, {len(ids):,} tokens to train on", flush=True)
    train(model, ids, held_out_ids, arguments.steps)
    model.save_pretrained(arguments.folder)
    tokenizer.save(str(arguments.folder / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": TEMPLATE}
    (arguments.folder / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main()
