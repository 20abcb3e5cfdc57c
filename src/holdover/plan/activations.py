"""Bytes of the activations of one step: an upper bound that follows how the forward is written.

Each line below is a moment of `holdover.models` at which much is alive at once: what enters a
product beside what leaves it, the halves of a rotation, a norm in fp32. Weights, cache and kernel
workspace are counted elsewhere. Imports no torch.
"""

from __future__ import annotations

from holdover.geometry.base import Geometry
from holdover.geometry.experts import Experts
from holdover.spec.dtypes import DType
from holdover.spec.limits import Limits

_INT64_BYTES = 8
_FP32_BYTES = DType.FP32.item_bytes
_FP64_BYTES = 8


def activation_bytes(geometry: Geometry, limits: Limits, dtype: DType) -> int:
    """Most bytes alive in a step of `step_tokens` tokens and `max_sequences` rows of logits."""
    g, item = geometry, dtype.item_bytes
    tokens, rows = limits.step_tokens, limits.max_sequences
    groups = len({layer.residency for layer in g.layers})
    # Token ids, positions and rows; a backend's block and place of each token, per group.
    inputs = _INT64_BYTES * (2 * tokens + rows + 2 * tokens * groups)
    places = {turn for turn in g.sink_turns if turn is not None}
    turned = [*g.ropes, *(g.ropes[rope] for rope, _ in places)]
    tables = sum(2 * tokens * rope.dim * item for rope in turned)
    residual = tokens * g.hidden_size * item
    attention = _attention(g, tokens, item) if g.latent is None else _latent(g, tokens, item)
    layer = max(_angles(g, tokens, item), attention, _mlp(g, tokens, item))
    if g.experts is not None:
        layer = max(layer, _experts(g, g.experts, tokens, item))
    end = max(residual + rows * g.hidden_size * item, _logits(g, rows, item))
    return inputs + tables + max(residual + layer, end)


def _angles(g: Geometry, tokens: int, item: int) -> int:
    """Of half a head: the angle and one of its cosine and sine in fp64, one in fp32; then both in
    fp32 and rounded, beside the finished tables."""
    made = max(2 * _FP64_BYTES + _FP32_BYTES, 2 * _FP32_BYTES + 3 * item)
    return tokens * max(rope.dim for rope in g.ropes) // 2 * made


def _attention(g: Geometry, tokens: int, item: int) -> int:
    """Beside the residual stream: norm, product with qkv, q/k norm, rotation, attention, output."""
    hidden, query = tokens * g.hidden_size * item, tokens * g.query_width * item
    turned = tokens * (g.query_width + g.kv_width)
    qkv = (turned + tokens * g.kv_width) * item
    normed = turned * item if g.qk_norm else 0
    # A backend may hold the step's queries and results once more, in fp32.
    attend = turned * item + query + 2 * tokens * g.query_width * _FP32_BYTES
    # A second query for sinks, turned beside the first and held once more as well.
    second = query if any(turn is not None for turn in g.sink_turns) else 0
    attend += second + (tokens * g.query_width * _FP32_BYTES if second else 0)
    heads = tokens * (g.query_heads + g.kv_heads)
    return max(
        hidden + qkv,
        qkv + (_norm(heads, g.head_dim, item) if g.qk_norm else 0),
        qkv + normed + second + 2 * turned * item,
        attend,
        query + hidden,
        hidden + _norm(tokens, g.hidden_size, item),  # a norm after the output product
    )


def _latent(g: Geometry, tokens: int, item: int) -> int:
    """Beside the residual stream: both low-rank products, absorption, attention, values, output."""
    m = g.latent
    assert m is not None
    heads = tokens * g.query_heads
    hidden, row, down = (tokens * n * item for n in (g.hidden_size, m.row_dim, m.query_rank))
    query, absorbed, mixed, value, turned = (
        heads * n * item for n in (m.head_dim, m.row_dim, m.rank, m.value_dim, m.rope_dim)
    )
    # A backend may hold the step's queries and results once more, in fp32.
    attend = absorbed + mixed + heads * (m.row_dim + m.rank) * _FP32_BYTES
    latent = tokens * m.rank * item + _norm(tokens, m.rank, item) + 4 * tokens * m.rope_dim * item
    return max(
        _norm(tokens, g.hidden_size, item),
        hidden + row + down + (_norm(tokens, m.query_rank, item) if down else 0),
        row + (down or hidden) + query,
        query + row + latent,
        query + absorbed + max(mixed, 2 * turned),
        attend,
        mixed + 2 * value,
        value + hidden,
    )


def _experts(g: Geometry, experts: Experts, tokens: int, item: int) -> int:
    """Beside the residual stream: scores in fp32, and all tokens in one expert."""
    e = experts
    hidden, inner, shared = (
        tokens * n * item for n in (g.hidden_size, e.inner_size, e.shared_inner_size)
    )
    widened = tokens * g.hidden_size * _FP32_BYTES
    scores = 5 * tokens * e.count * _FP32_BYTES
    # Experts and weights of each token, twice while they are sorted.
    choice = tokens * e.chosen * (4 * _INT64_BYTES + 2 * _FP32_BYTES)
    one = max(hidden + 2 * inner, 3 * inner, inner + hidden, 2 * hidden + widened)
    return hidden + max(
        _norm(tokens, g.hidden_size, item),
        (0 if item == _FP32_BYTES else widened) + scores,
        choice + hidden + one,
        choice + hidden + max(3 * shared, shared + hidden),
    )


def _mlp(g: Geometry, tokens: int, item: int) -> int:
    """Product with gate and up, the activated gate beside both, and the product down."""
    hidden, inner = tokens * g.hidden_size * item, tokens * g.intermediate_size * item
    return max(hidden + 2 * inner, 3 * inner, inner + hidden)


def _logits(g: Geometry, rows: int, item: int) -> int:
    """Logits in the model's dtype, then beside them in fp32 where that is another."""
    hidden, scores = rows * g.hidden_size * item, rows * g.vocab_size
    widened = 0 if item == _FP32_BYTES else scores * _FP32_BYTES
    return max(hidden + _norm(rows, g.hidden_size, item), 2 * hidden + scores * item + widened)


def _norm(rows: int, width: int, item: int) -> int:
    """In fp32 one temporary at a time; from 16 bit the widened input, its norm and the result.

    Each row's mean and its root are kept beside them.
    """
    wide = _FP32_BYTES if item == _FP32_BYTES else 2 * _FP32_BYTES + item
    return rows * (width * wide + 2 * _FP32_BYTES)
