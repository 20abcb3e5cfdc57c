"""What a served model is, and how one is loaded.

`load_model` reads a checkpoint layer by layer into the matrices that are multiplied. A model keeps
no state between steps: the cache belongs to the `AttentionStep` it is given. One file per family,
named as in `holdover.geometry`, says in its `FAMILY` what is particular to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from holdover.errors import UnsupportedModelError
from holdover.geometry.base import Geometry, expected_tensors
from holdover.kernels.base import AttentionStep
from holdover.registry import load_plugin, plugin_names
from holdover.spec.dtypes import DType
from holdover.weights.base import Checkpoint, require_tensors

if TYPE_CHECKING:
    from torch import Tensor


class Model(Protocol):
    """A decoder in memory."""

    @property
    def geometry(self) -> Geometry: ...

    @property
    def dtype(self) -> DType:
        """Of weights and activations."""

    @property
    def weights_nbytes(self) -> int:
        """Bytes of all tensors held, shared ones once; equals `planned_weights_bytes`."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        logit_rows: Tensor,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """One step over the flat tokens of any number of sequences.

        `token_ids` and `positions` are int64 [tokens], `logit_rows` int64 [rows] indexes tokens.
        Writes every layer's keys and values through `step`. Returns float32 [rows, vocab], which
        may be overwritten by the next call.

        `hidden`, float32 [rows + known, width], gets the last hidden states that the logits
        follow from (`spec.ends`). What it has behind these rows is known from earlier steps, and
        its logits are returned as well: [rows + known, vocab]. There may be no tokens then. Tokens
        and known rows together are no more than a step's tokens.
        """


@dataclass(frozen=True, slots=True)
class Family:
    """What a family adds to pre-norm attention and a gated MLP; names are those after the layer's.

    A norm after a half of a layer normalises what is added to the residual stream.
    """

    mlp_norm: str
    attention_post_norm: str | None = None
    mlp_post_norm: str | None = None
    norms_from_one: bool = False  # weights are stored as their difference from one
    wide_norms: bool = False  # weights are held in fp32, and multiply before rounding
    scaled_embedding: bool = False  # by the root of the width


class ModelModule(Protocol):
    """What a family's file offers."""

    FAMILY: Family


def load_model(checkpoint: Checkpoint, geometry: Geometry, dtype: DType) -> Model:
    """Load a model's weights as `dtype` (fp32 or bf16), to be computed by torch.

    Raises ModelFileError naming a tensor that is missing or of another shape than `geometry` says.
    """
    from holdover.models._decoder import Decoder

    family = family_of(geometry)
    require_tensors(checkpoint, expected_tensors(geometry))
    return Decoder.load(checkpoint, geometry, dtype, family)


def family_of(geometry: Geometry) -> Family:
    """What the geometry's family adds; UnsupportedModelError for one that is only sized."""
    served = plugin_names(__package__)
    if geometry.family not in served:
        raise UnsupportedModelError(
            f"{geometry.architecture} can be sized but not served yet; served: {', '.join(served)}"
        )
    return cast(ModelModule, load_plugin(__package__, geometry.family)).FAMILY
