"""Layers that share one residency rule and geometry form a group and share one block table."""

from __future__ import annotations

from dataclasses import dataclass

from holdover.spec.layers import LayerSpec, Plane
from holdover.spec.residency import Full, Residency
from holdover.spec.sparse import Sparse


@dataclass(frozen=True, slots=True)
class Group:
    """`layers` are the indices of the layers that store rows, in model order."""

    index: int
    residency: Residency
    planes: tuple[Plane, ...]
    layers: tuple[int, ...]
    sparse: Sparse | None = None

    def has_bounds(self, layer: int) -> bool:
        """Whether decoding reads few blocks of the rows that `layer` stores."""
        return self.sparse is not None and layer >= self.sparse.dense_layers


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """All layers of a model, grouped. One `block_tokens` for all groups: a hit is one number."""

    layers: tuple[LayerSpec, ...]
    block_tokens: int
    groups: tuple[Group, ...]
    group_of_layer: tuple[int, ...]

    @classmethod
    def of(
        cls, layers: tuple[LayerSpec, ...], block_tokens: int, sparse: Sparse | None = None
    ) -> CacheSpec:
        """`sparse` is for the groups that can be read so: full attention over keys and values."""
        members: dict[tuple[Residency, tuple[Plane, ...]], list[int]] = {}
        for index, layer in enumerate(layers):
            if layer.shares_with is None:
                members.setdefault((layer.residency, layer.planes), []).append(index)
            else:
                source = layers[layer.shares_with]
                assert layer.shares_with < index, f"layer {index} shares with a later layer"
                assert source.shares_with is None, f"layer {index} shares with a sharing layer"
        groups = tuple(
            Group(g, residency, planes, tuple(indices), _fitting(sparse, residency, planes))
            for g, ((residency, planes), indices) in enumerate(members.items())
        )
        home = {layer: group.index for group in groups for layer in group.layers}
        group_of_layer = tuple(
            home[index if layer.shares_with is None else layer.shares_with]
            for index, layer in enumerate(layers)
        )
        return cls(layers, block_tokens, groups, group_of_layer)

    def storage_layer(self, layer: int) -> int:
        """The layer whose rows `layer` reads: itself, or the one it shares with."""
        shared = self.layers[layer].shares_with
        return layer if shared is None else shared

    @property
    def keeps_all(self) -> bool:
        """Whether no layer ever lets a token go."""
        return all(isinstance(group.residency, Full) for group in self.groups)

    @property
    def sparse(self) -> Sparse | None:
        """How decoding reads the groups that it reads little of; None: it reads all of all."""
        return next((group.sparse for group in self.groups if group.sparse is not None), None)


def _fitting(
    sparse: Sparse | None, residency: Residency, planes: tuple[Plane, ...]
) -> Sparse | None:
    whole = residency == Full() and {plane.name for plane in planes} == {"k", "v"}
    return sparse if whole else None
