"""From logits to tokens, vectorised over rows.

A row's token depends on its logits, its parameters, its seed and its position, and on no other row:
alone or batched, at once or after parking, the answer is the same. Greedy rows without penalties
cost one argmax, or two with biases. All other rows are worked on in slices, so that scratch stays
within `sampler_bytes`.
Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from holdover.engine.api import MAX_LOGPROBS, SamplingParams, TokenLogprob
from holdover.engine.counts import TokenCounts
from holdover.engine.noise import add_noise, noise_key
from holdover.spec.limits import Limits

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_SLICE_ELEMENTS = 2**18  # logits worked on at once; one row if the vocabulary is larger
_SCRATCH_BYTES_PER_LOGIT = 48  # copies 8, sorted scores and ids 12, sort's inside 16, masks
_ROW_SCRATCH_BYTES = 4096  # per row: parameters, the likeliest tokens, results
_HEADS = (64, 1024)  # sorted heads tried before the whole vocabulary is sorted
_LEAST_FP32 = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one row of logits needs; `seed` and `position` (tokens before it) decide the draw."""

    params: SamplingParams
    seed: int = 0
    position: int = 0
    counts: TokenCounts | None = None

    @property
    def is_greedy(self) -> bool:
        """Nothing but biases stands between the largest logit and the token."""
        return self.params.temperature == 0 and self.counts is None


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprob: TokenLogprob | None


def has_penalty(params: SamplingParams) -> bool:
    """Whether rows of these parameters need `TokenCounts`."""
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def sampler_bytes(limits: Limits, vocab_size: int) -> int:
    """Most scratch bytes of one `sample` call within the limits, the logits themselves apart."""
    rows = min(limits.max_sequences, _rows_per_slice(vocab_size))
    return rows * vocab_size * _SCRATCH_BYTES_PER_LOGIT + limits.max_sequences * _ROW_SCRATCH_BYTES


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[Sampled | None]:
    """One token per row of `logits` [rows, vocab] float32, which stay as they are.

    None for a row with NaN or without a finite largest logit: it has no token to choose. Other rows
    are not affected.
    """
    assert logits.shape[0] == len(rows), f"{logits.shape[0]} rows of logits for {len(rows)}"
    tokens = np.full(len(rows), -1, dtype=np.int64)
    values = logits.numpy(force=True)  # finds a maximum in a tenth of torch's time
    arg = values.argmax(-1)  # of a NaN where there is any
    sound = np.isfinite(values[np.arange(len(rows)), arg])
    greedy = [i for i, row in enumerate(rows) if row.is_greedy and sound[i]]
    tokens[greedy] = arg[greedy]
    biased = [i for i in greedy if rows[i].params.logit_bias]
    tokens[biased] = _largest_biased(values, biased, rows)
    per_slice = _rows_per_slice(logits.shape[1])
    others = [i for i, row in enumerate(rows) if not row.is_greedy and sound[i]]
    for start in range(0, len(others), per_slice):
        index = others[start : start + per_slice]
        tokens[index] = _sample_slice(logits, index, [rows[i] for i in index])
    logprobs: list[TokenLogprob | None] = [None] * len(rows)
    wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None and sound[i]]
    for start in range(0, len(wanted), per_slice):
        index = wanted[start : start + per_slice]
        counts = [rows[i].params.logprobs or 0 for i in index]
        for i, logprob in zip(index, _logprobs(logits, index, tokens[index], counts), strict=True):
            logprobs[i] = logprob
    return [
        Sampled(int(token), logprob) if fine else None
        for token, fine, logprob in zip(tokens, sound, logprobs, strict=True)
    ]


def _largest_biased(
    values: NDArray[np.float32], index: list[int], rows: Sequence[SampleRow]
) -> list[int]:
    """Where the rows `index` are largest with their biases, one after the other in one copy."""
    scores = np.empty(values.shape[1], values.dtype)
    found = []
    for i in index:
        ids, biases = zip(*rows[i].params.logit_bias, strict=True)
        np.copyto(scores, values[i])
        np.add.at(scores, np.array(ids), np.array(biases, np.float32))  # a token may have several
        found.append(int(scores.argmax()))
    return found


def _rows_per_slice(vocab_size: int) -> int:
    return max(1, _SLICE_ELEMENTS // vocab_size)


def _sample_slice(logits: Tensor, index: list[int], rows: Sequence[SampleRow]) -> NDArray[np.int64]:
    """Tokens of the rows `index`: adjust, scale, cut, draw."""
    import torch

    scores = logits[torch.tensor(index, device=logits.device)]
    _add_bias(scores, rows)
    _penalise(scores, rows)
    best, arg = scores.max(-1, keepdim=True)
    tokens = arg[:, 0].numpy(force=True)
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if not drawn:
        return tokens
    # Subtracting the maximum first keeps tiny temperatures from overflowing to inf - inf.
    scores.sub_(best).div_(_column(scores, [_fp32(r.params.temperature) or 1.0 for r in rows]))
    if any(row.params.min_p > 0 for row in rows):
        floor = [math.log(r.params.min_p) if r.params.min_p > 0 else -math.inf for r in rows]
        scores.masked_fill_(scores < _column(scores, floor), -math.inf)
    cut = [i for i in drawn if _is_cut(rows[i].params)]
    for head in (*_HEADS, scores.shape[1]):
        now = [i for i in cut if min(rows[i].params.top_k, scores.shape[1]) <= head]
        if now:
            found = _draw_cut(scores[now], [rows[i] for i in now], head)
            tokens[now] = np.where(found >= 0, found, tokens[now])
            done = {i for i, token in zip(now, found, strict=True) if token >= 0}
            cut = [i for i in cut if i not in done]
    assert not cut, f"rows {cut} got no token"
    whole = [i for i in drawn if not _is_cut(rows[i].params)]
    if whole:
        if len(whole) < len(rows):
            scores = scores[whole]
        ids = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)[None]
        tokens[whole] = _draw(scores, ids, [rows[i] for i in whole])
    return tokens


def _is_cut(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def _draw_cut(scores: Tensor, rows: Sequence[SampleRow], head: int) -> NDArray[np.int64]:
    """Draw from what top_k, top_p and min_p leave; -1 where that is more than `head` tokens.

    Which heads a row tries depends on that row alone, so ties are broken alike in any batch.
    """
    import torch

    vocab_size = scores.shape[1]
    log_total = scores.logsumexp(-1, keepdim=True)
    top, long_ids = scores.topk(min(head, vocab_size))
    del scores
    ids = long_ids.int()
    del long_ids
    n_top = top.shape[1]
    k = [min(row.params.top_k, vocab_size) or vocab_size for row in rows]
    if n_top > min(k):
        rank = torch.arange(n_top, dtype=torch.int32, device=ids.device)
        top.masked_fill_(rank >= _column(ids, k), -math.inf)
    p = top.sub(log_total).exp_()
    mass = p.cumsum(-1)
    # Under top_k the mass is that of the k; else it is all of it, whether in the head or not.
    limited = ids.new_tensor([row.params.top_k > 0 for row in rows]).bool()
    total = mass[:, -1:].where(limited[:, None], mass.new_ones(1))
    goal = _column(mass, [_fp32(row.params.top_p) for row in rows]) * total
    # The head is enough where it goes past what top_p or min_p leave, or top_k has ended it.
    enough = (mass[:, -1] >= goal[:, 0]) | (top[:, -1] == -math.inf) | limited
    if any(row.params.top_p < 1 for row in rows):
        top.masked_fill_(mass.sub_(p) >= goal, -math.inf)
    del p, mass
    picked = _draw(top, ids, rows)
    tokens: NDArray[np.int64] = ids.numpy(force=True)[np.arange(len(rows)), picked].astype(np.int64)
    return tokens if n_top == vocab_size else np.where(enough.numpy(force=True), tokens, -1)


def _draw(scores: Tensor, ids: Tensor, rows: Sequence[SampleRow]) -> NDArray[np.int64]:
    """Columns drawn from softmax(scores) [rows, n], whose tokens are `ids`; changes the scores."""
    keys = [noise_key(row.seed, row.position) for row in rows]
    return add_noise(scores, ids, keys).argmax(-1).numpy(force=True)


def _add_bias(scores: Tensor, rows: Sequence[SampleRow]) -> None:
    flat = [(i, t, bias) for i, row in enumerate(rows) for t, bias in row.params.logit_bias]
    if flat:
        import torch

        index, ids, bias = zip(*flat, strict=True)
        where = (_ids(scores, index), _ids(scores, ids))
        scores.index_put_(where, torch.tensor(bias, device=scores.device), accumulate=True)


def _penalise(scores: Tensor, rows: Sequence[SampleRow]) -> None:
    seen = [(i, row.params, row.counts) for i, row in enumerate(rows) if row.counts is not None]
    if not seen:
        return
    import torch

    index, params, counts = zip(*seen, strict=True)
    lengths = [len(c.ids) for c in counts]

    def each_token(values: Sequence[float]) -> Tensor:
        """A row's value for each of its tokens."""
        flat = np.repeat(np.asarray(values, dtype=np.float32), lengths)
        return torch.from_numpy(flat).to(scores.device)

    ids = _ids(scores, np.concatenate([c.ids for c in counts]))
    where = (_ids(scores, np.repeat(index, lengths)), ids)
    generated = torch.from_numpy(np.concatenate([c.generated for c in counts])).to(scores.device)
    score = scores[where]
    penalty = each_token([p.repetition_penalty for p in params])
    score = torch.where(score > 0, score / penalty, score * penalty)
    score -= each_token([p.presence_penalty for p in params]) * (generated > 0)
    score -= each_token([p.frequency_penalty for p in params]) * generated
    scores[where] = score


def _logprobs(
    logits: Tensor, index: list[int], tokens: NDArray[np.int64], counts: Sequence[int]
) -> list[TokenLogprob]:
    """Of the chosen tokens and the `counts` likeliest ones, before any sampling parameter."""
    values = logits[_ids(logits, index)].log_softmax(-1)
    chosen = values.gather(1, _ids(logits, tokens)[:, None])[:, 0].tolist()
    # Always as many, so that ties at the end do not depend on what other rows ask for.
    top, ids = values.topk(min(MAX_LOGPROBS, values.shape[1]))
    pairs = [list(zip(i, t, strict=True)) for i, t in zip(ids.tolist(), top.tolist(), strict=True)]
    return [
        TokenLogprob(int(token), logprob, tuple(pair[:n]))
        for token, logprob, pair, n in zip(tokens, chosen, pairs, counts, strict=True)
    ]


def _fp32(value: float) -> float:
    """A value above 0 as one that is still above 0 in fp32."""
    return max(value, _LEAST_FP32) if value else value


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return like.new_tensor(values)[:, None]


def _ids(like: Tensor, values: Sequence[int] | NDArray[np.int64]) -> Tensor:
    import torch

    return torch.as_tensor(np.asarray(values, dtype=np.int64), device=like.device)
