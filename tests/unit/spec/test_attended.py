"""What attention reads of a token, from the planes that a layer stores."""

from __future__ import annotations

import pytest

from holdover.spec.layers import Attended, Plane, attention_planes, latent_planes


def test_keys_and_values() -> None:
    found = Attended.of(attention_planes(8, 128))
    assert found is not None
    assert (found.heads, found.query_dim, found.values.name) == (8, 128, "v")
    assert not found.values_are_keys


def test_latents_are_keys_and_values() -> None:
    found = Attended.of(latent_planes(512, 64))
    assert found is not None
    assert [plane.name for plane in found.keys] == ["latent", "rope"]
    assert (found.heads, found.query_dim, found.values.dim) == (1, 576, 512)
    assert found.values_are_keys


@pytest.mark.parametrize("names", [("k",), ("latent",), ("latent", "rope", "index")])
def test_nothing_attends_over_other_planes(names: tuple[str, ...]) -> None:
    assert Attended.of(tuple(Plane(name, 1, 8) for name in names)) is None
