"""What the prefix index compares, and how often it hashes."""

from hypothesis import given
from hypothesis import strategies as st

from holdover.cache.arena import NullArena
from holdover.cache.manager import CacheManager
from holdover.cache.prefix import common_tokens, token_bytes
from holdover.codecs.base import uniform
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Full

few = st.lists(st.integers(0, 2), max_size=40)


@given(common=few, a=few, b=few)
def test_common_tokens(common: list[int], a: list[int], b: list[int]) -> None:
    a, b = common + a, common + b
    pairs = zip(a, b, strict=False)
    expected = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
    assert common_tokens(token_bytes(a), token_bytes(b)) == expected


def test_only_new_runs_are_hashed() -> None:
    layout = CacheLayout.of(
        CacheSpec.of((LayerSpec(attention_planes(1, 64), Full()),), 4), uniform("bf16")
    )
    manager = CacheManager(layout, NullArena(20 * layout.sector_bytes))
    hashed = []
    digest = manager._index._hash

    def counted(parent: bytes, run: bytes) -> bytes:
        if len(run) == manager._index.run_bytes:
            hashed.append(run)
        return digest(parent, run)

    manager._index._hash = counted
    prompt = [*range(40), 1]

    def turn(cached: int) -> int:
        hashed.clear()
        match = manager.match(prompt)
        assert match.n_tokens == cached
        sequence = manager.admit(prompt, match, len(prompt) - cached)
        assert sequence is not None
        manager.commit(sequence, prompt[cached:])
        manager.release(sequence)
        n_hashed = len(hashed)
        manager.check()
        return n_hashed

    assert turn(0) == 10
    assert turn(40) == 0  # kept
    manager.evict()
    assert turn(0) == 0  # gone, and known
