"""Engines on a tiny random Llama and on the real models, in fp32 where nothing else is said.

The kernels are those that serve here: HOLDOVER_BACKEND=reference runs all tests on the others.
Torch computes what lies around attention, except where a test asks for the native decoder.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from holdover.cache.arena import HostArena
from holdover.cache.costs import Costs
from holdover.cache.ends import PromptEnds
from holdover.cache.manager import CacheManager
from holdover.cache.mover import Mover
from holdover.cache.tiers._open import open_tiers, parse_tiers, stored_layouts
from holdover.codecs.base import kv_choice
from holdover.engine.api import Event, SamplingParams, TokenLogprob, Usage
from holdover.engine.engine import Engine
from holdover.engine.planning import centre_layout
from holdover.geometry.base import read_geometry
from holdover.kernels._selection import AUTO, asked_backend, select_backend
from holdover.kernels._transcoding import centres_of, transcoder
from holdover.kernels.base import AttentionBatch, AttentionStep, KernelBackend
from holdover.kernels.native.availability import extension
from holdover.models._blueprint import Blueprint
from holdover.models._centring import find_centres, text_tokens
from holdover.models._native import load_weights, with_weights
from holdover.models.base import Model, load_model
from holdover.spec.dtypes import DType
from holdover.spec.ends import EndLayout
from holdover.spec.groups import CacheSpec
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.text.tokenizer import Tokenizer, load_tokenizer
from holdover.units import largest
from holdover.weights import Checkpoint, open_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=16)


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For every test of this folder."""


@dataclass
class Answer:
    """One of a request's answers, put together from its events."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: Event | None = None

    @property
    def reason(self) -> str | None:
        return self.last.finish_reason if self.last else None

    @property
    def usage(self) -> Usage:
        assert self.last is not None
        assert self.last.usage is not None
        return self.last.usage

    @property
    def cached_tokens(self) -> int:
        return self.usage.cached_tokens


class Reply:
    """Collects the events of one request; `answers()` waits for all of them."""

    def __init__(self, n: int = 1) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.request_id = ""
        self._answers = [Answer() for _ in range(n)]

    def next_event(self) -> Event:
        event = self.events.get(timeout=120)
        answer = self._answers[event.index]
        assert answer.last is None, "an event after the last one"
        answer.text += event.text
        answer.tokens += event.token_ids
        answer.logprobs += event.logprobs
        if event.finish_reason is not None:
            answer.last = event
        return event

    def answers(self) -> list[Answer]:
        while any(answer.last is None for answer in self._answers):
            self.next_event()
        return self._answers

    def answer(self) -> Answer:
        return self.answers()[0]


class Gate:
    """Kernels that can be held before a step, or made to fail in one."""

    def __init__(self, kernels: KernelBackend) -> None:
        self._kernels = kernels
        self.open = threading.Event()
        self.open.set()
        self.arrived = threading.Event()
        self.fail_with: Exception | None = None
        self.damage: Callable[[AttentionBatch], slice | None] = lambda batch: None

    def begin(self, batch: AttentionBatch) -> AttentionStep:
        self.arrived.set()
        assert self.open.wait(120)
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        step = self._kernels.begin(batch)
        rows = self.damage(batch)
        return step if rows is None else DamagedStep(step, rows)

    def hold(self) -> None:
        self.open.clear()
        self.arrived.clear()


@dataclass
class DamagedStep:
    """A step in which some rows of the batch come out as NaN, keys and values included."""

    step: AttentionStep
    rows: slice

    def write(self, layer: int, rows: Mapping[str, Tensor]) -> None:
        damaged = {plane: of_plane.clone() for plane, of_plane in rows.items()}
        for of_plane in damaged.values():
            of_plane[self.rows] = torch.nan
        self.step.write(layer, damaged)

    def attend(
        self, layer: int, query: Tensor, scale: float, softcap: float = 0.0, **more: Any
    ) -> Tensor:
        return self.step.attend(layer, query, scale, softcap, **more)


@dataclass
class Served:
    """A running engine, with what a test wants to look at."""

    engine: Engine
    manager: CacheManager
    gate: Gate
    tokenizer: Tokenizer

    def ask(
        self,
        prompt: str | tuple[int, ...],
        params: SamplingParams = GREEDY,
        n: int = 1,
        tenant: str = "",
    ) -> Reply:
        ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
        reply = Reply(n)
        reply.request_id = self.engine.submit(ids, params, reply.events.put, n=n, tenant=tenant)
        return reply

    def together(self, prompts: list[str], params: SamplingParams = GREEDY) -> list[Answer]:
        """Answers of requests that all stand in the queue before the first step."""
        self.gate.hold()
        replies = [self.ask(prompt, params) for prompt in prompts]
        self.gate.open.set()
        return [reply.answer() for reply in replies]

    def alone(self, prompts: list[str], params: SamplingParams = GREEDY) -> list[Answer]:
        """Answers one after the other, each from a cache without anything."""
        found = []
        for i, prompt in enumerate(prompts):
            found.append(self.ask(prompt, params, tenant=f"alone {i}").answer())
            assert found[-1].cached_tokens == 0
        return found

    def assert_hits_equal_cold(self, prompts: list[str], params: SamplingParams) -> None:
        """Batched answers are those given alone, and a second turn is what it is without reuse."""
        cold = self.alone(prompts, params)
        assert [a.tokens for a in self.together(prompts, params)] == [a.tokens for a in cold]
        encode = self.tokenizer.encode
        for prompt, first in zip(prompts, cold, strict=True):
            turn_two = (*encode(prompt), *first.tokens, *encode(" go on"))
            warm = self.ask(turn_two, params).answer()
            fresh = self.ask(turn_two, params, tenant="another").answer()
            assert warm.cached_tokens == len(encode(prompt)) + len(first.tokens) - 1
            assert fresh.cached_tokens == 0
            assert warm.tokens == fresh.tokens

    def assert_nothing_held(self) -> None:
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.parked) == (0, 0, 0)
        assert (stats.held_bytes, stats.logical_bytes) == (0, 0)
        self.manager.check()


@dataclass
class Loaded:
    """A model in memory, to put engines around."""

    checkpoint: Checkpoint
    model: Model
    tokenizer: Tokenizer
    weights: dict[str, tuple[Blueprint, Tensor]] = field(default_factory=dict)  # native ones

    @classmethod
    def of(cls, path: Path) -> Loaded:
        checkpoint = open_checkpoint(path)
        model = load_model(checkpoint, read_geometry(checkpoint.config), DType.FP32)
        return cls(checkpoint, model, load_tokenizer(checkpoint))

    def native(self, element: str, limits: Limits) -> Model:
        """The native decoder with weights stored as `element`."""
        if element not in self.weights:
            blueprint = Blueprint.of(extension(), self.model.geometry, element)  # type: ignore[arg-type]
            self.weights[element] = blueprint, load_weights(self.checkpoint, blueprint)
        blueprint, weights = self.weights[element]
        dtype = DType.FP32 if element == "fp32" else DType.BF16
        return with_weights(weights, blueprint, dtype, limits)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """serve(loaded, arena_bytes=..., limits) -> Served, shut down and checked at the end."""
    started: list[Served] = []

    def start(
        loaded: Loaded, arena_bytes: int = 8 << 20, *, max_sequences: int = 16,
        step_tokens: int = 64, block_tokens: int = 8, max_context_tokens: int | None = None,
        codec: str = "fp32", backend: str | None = None, max_waiting_requests: int = 1000,
        native_weights: str | None = None, tiers: Sequence[str] = (), prompt_ends: int = 4,
    ) -> Served:  # fmt: skip
        geometry = loaded.model.geometry
        spec = CacheSpec.of(geometry.layers, block_tokens)
        layout = CacheLayout.of(spec, kv_choice(codec))
        n_sectors = arena_bytes // layout.sector_bytes
        most = max_context_tokens or geometry.max_context_tokens
        context_tokens = largest(
            lambda n: layout.sectors_for(layout.peak_blocks(n, step_tokens)) <= n_sectors, most
        )
        threads = torch.get_num_threads()
        limits = Limits(max_sequences, step_tokens, context_tokens, threads)
        arena = HostArena(n_sectors * layout.sector_bytes)
        kernels = select_backend(backend or asked_backend(AUTO), layout).module
        workspace_bytes = kernels.workspace_bytes(layout, limits, geometry.query_heads)
        workspace = torch.zeros(workspace_bytes, dtype=torch.uint8)
        specs = parse_tiers(tiers)
        model = loaded.native(native_weights, limits) if native_weights else loaded.model
        shapes = centre_layout(layout, geometry, limits, stored_layouts(specs, layout))
        text = text_tokens(loaded.tokenizer)
        centres = find_centres(model, kernels, shapes, spec, limits, text)
        own = centres_of(layout, centres)
        opened = open_tiers(
            specs, layout, loaded.checkpoint.digest() + layout.fingerprint,
            lambda stored: transcoder(layout, own, stored, centres_of(stored, centres)),
        )  # fmt: skip
        ends = EndLayout.of(prompt_ends, max_sequences, geometry.hidden_size)
        manager = CacheManager(
            layout, arena, mover=Mover(layout, opened, Costs()),
            ends=PromptEnds(ends, block_tokens),
        )  # fmt: skip
        gate = Gate(kernels.bind(arena.bytes, layout, limits, workspace, own))
        engine = Engine(
            model=model, kernels=gate, manager=manager, tokenizer=loaded.tokenizer,
            limits=limits, planned_bytes=arena.nbytes, allocated_bytes=arena.nbytes,
            max_waiting_requests=max_waiting_requests,
        )  # fmt: skip
        started.append(Served(engine, manager, gate, loaded.tokenizer))
        return started[-1]

    yield start
    for served in started:
        served.gate.open.set()
        served.engine.shutdown(0)
        assert not served.engine._thread.is_alive()
        served.assert_nothing_held()


def byte_tokenizer_json() -> str:
    """256 byte tokens and <eos>, id 256; no merges."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken("<eos>", special=True)])
    return str(made.to_str())


def save_random_llama(folder: Path, n_layers: int) -> None:
    """A small one over bytes, without a tokenizer."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=257, hidden_size=64, intermediate_size=96, num_hidden_layers=n_layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        bos_token_id=None, eos_token_id=256, pad_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Two layers of random Llama over bytes."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_random_llama(folder, 2)
    return load_with_bytes(folder)


@pytest.fixture(scope="session")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Two layers of random DeepSeek-V2 over bytes, the second of them with experts."""
    folder = tmp_path_factory.mktemp("tiny-deepseek")
    torch.manual_seed(3)
    config = DeepseekV2Config(
        vocab_size=257, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1,
        max_position_embeddings=1024, bos_token_id=None, eos_token_id=256, pad_token_id=None,
        initializer_range=0.2,
    )  # fmt: skip
    DeepseekV2ForCausalLM(config).save_pretrained(folder)
    return load_with_bytes(folder)


@pytest.fixture(scope="session")
def oss(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Two layers of random gpt-oss over bytes, the first of them with a window."""
    folder = tmp_path_factory.mktemp("tiny-gpt-oss")
    torch.manual_seed(5)
    config = GptOssConfig(
        vocab_size=257, hidden_size=64, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=24, max_position_embeddings=1024,
        bos_token_id=None, eos_token_id=256, pad_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    GptOssForCausalLM(config).save_pretrained(folder)
    return load_with_bytes(folder)


def load_with_bytes(folder: Path) -> Loaded:
    """The model of a folder, with a tokenizer put beside it."""
    (folder / "tokenizer.json").write_text(byte_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return Loaded.of(folder)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Loaded:
    return Loaded.of(smollm2_path)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Loaded:
    return Loaded.of(gemma3_path)
