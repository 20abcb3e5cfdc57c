"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): numbers and tensors.

Keys and values of all heads come from one latent row a token; beside it stands one rotary key.
These two are what is cached. In absorbed form a head's query goes through its part of the up
projection, and meets the latents themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

NORM_EPS = 1e-6  # of the norms of latents: the class's own default, in no config
LATENT_DOWN = "self_attn.kv_a_proj_with_mqa"  # to the latent and the rotary key
LATENT_UP = "self_attn.kv_b_proj"  # to each head's key and value


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """A query head has `nope_dim` elements for the latent and `rope_dim` for the rotary key.

    With `interleaved`, checkpoints have pairs of rotary elements side by side.
    """

    query_rank: int  # 0: queries come from the hidden state in one product
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool = True

    @property
    def head_dim(self) -> int:
        """Of a query, as it is projected."""
        return self.nope_dim + self.rope_dim

    @property
    def row_dim(self) -> int:
        """Of a query, as it is attended with: what is cached of one token."""
        return self.rank + self.rope_dim

    @property
    def query_up(self) -> str:
        """The projection to query heads."""
        return "self_attn.q_b_proj" if self.query_rank else "self_attn.q_proj"


def latent_linears(
    latent: Latent, hidden_size: int, query_heads: int, bias: bool
) -> dict[str, tuple[int, int, bool]]:
    """Rows, columns and whether there is a bias of one layer's projections, by name."""
    m = latent
    linears = {
        m.query_up: (query_heads * m.head_dim, m.query_rank or hidden_size, False),
        LATENT_DOWN: (m.row_dim, hidden_size, bias),
        LATENT_UP: (query_heads * (m.nope_dim + m.value_dim), m.rank, False),
        "self_attn.o_proj": (hidden_size, query_heads * m.value_dim, bias),
    }
    if m.query_rank:
        linears["self_attn.q_a_proj"] = (m.query_rank, hidden_size, bias)
    return linears
