"""The sizing plan's arithmetic: closed forms against counting one by one, text against numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from math import comb
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.config import DEFAULT_SINK_TOKENS
from holdover.errors import ConfigError
from holdover.geometry.sizing import Parameters
from holdover.plan.sizing.cache import Cache
from holdover.plan.sizing.ceiling import decode_ceiling
from holdover.plan.sizing.changes import single_changes, with_window
from holdover.plan.sizing.device import Device, Headroom
from holdover.plan.sizing.formula import formula
from holdover.plan.sizing.goal import Goal, answer_goal, chosen, completed, points
from holdover.plan.sizing.lengths import Grid, Lengths, max_users, parse_lengths
from holdover.plan.sizing.scenario import Scenario
from holdover.plan.sizing.weights import BITS, Weights, in_dtype, requantised
from holdover.spec.dtypes import DType
from holdover.spec.layers import Plane, attention_planes
from holdover.spec.memory import Kind, MemorySpec, Sharding
from holdover.spec.residency import Chunk, Fixed, Full, Window
from holdover.units import largest

FULL = MemorySpec(Kind.ATTENTION, "full", attention_planes(8, 128), Full(), tuple(range(32)))
WINDOW = MemorySpec(Kind.ATTENTION, "window", attention_planes(4, 64), Window(100), tuple(range(6)))
CHUNK = MemorySpec(Kind.ATTENTION, "chunk", attention_planes(2, 64), Chunk(128), (0, 1))
MLA = MemorySpec(
    Kind.ATTENTION, "mla", (Plane("latent", 1, 512), Plane("rope", 1, 64)), Full(),
    tuple(range(27)), sharding=Sharding.REPLICATED,
)  # fmt: skip
INDEX = MemorySpec(
    Kind.INDEXER, "index", (Plane("index", 1, 128),), Full(), tuple(range(27)),
    sharding=Sharding.REPLICATED,
)  # fmt: skip
STATE = MemorySpec(
    Kind.STATE, "state", (Plane("state", 16, 4096),), Fixed(1), tuple(range(9)), dtype=DType.FP32
)
COMPRESSED = MemorySpec(
    Kind.ATTENTION, "1/128", (Plane("latent", 1, 512),), Full(), (0, 1, 2), tokens_per_row=128
)
CROSS = MemorySpec(Kind.CROSS, "encoder", attention_planes(8, 64), Fixed(1500), tuple(range(4)))
ALL = (FULL, WINDOW, CHUNK, MLA, INDEX, STATE, COMPRESSED, CROSS)
GIB = 2**30

memories = st.lists(st.sampled_from(ALL), min_size=1, max_size=4, unique=True)
codecs = st.sampled_from(["fp32", "bf16", "fp8", "int8", "int4", "k=int8,v=int4"])


def scenario(
    *specs: MemorySpec, memory_bytes: int = 24 * GIB, weights_bytes: int = 16 * GIB,
    users: int = 1, context_tokens: int = 4000, n_devices: int = 1, kv: str = "bf16",
) -> Scenario:  # fmt: skip
    weights = Weights(weights_bytes, "bf16", "test", weights_bytes // 2, weights_bytes)
    device = Device("card", memory_bytes, 10**12)
    cache = Cache.of(specs or (FULL,), kv)
    headroom = Headroom.parse("10%")
    return Scenario.of(cache, weights, device, n_devices, headroom, users, context_tokens)


@given(memories, codecs, st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_held_is_never_less_than_logical_and_kinds_sum_up(
    specs: list[MemorySpec], codec: str, n_tokens: int
) -> None:
    cache = Cache.of(specs, codec)
    logical = cache.logical_bytes(n_tokens)
    assert logical <= cache.held_bytes(n_tokens) <= cache.held_bytes(n_tokens, 512)
    assert sum(cache.logical_by_kind(n_tokens).values()) == logical


@given(memories, codecs)
@settings(max_examples=60, deadline=None)
def test_growing_and_fixed_parts_give_the_bytes_of_any_long_context(
    specs: list[MemorySpec], codec: str
) -> None:
    cache = Cache.of(specs, codec)
    n_tokens = 128 * 1000  # past every window, and whole rows of everything
    expected = cache.growing_bytes_per_token * n_tokens + cache.fixed_bytes
    assert cache.logical_bytes(n_tokens) == expected


@pytest.mark.parametrize("codec", ["bf16", "fp32", "int8", "int4", "q8_0", "k=q8_0,v=q4_0"])
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.label)
def test_a_formula_multiplies_out_to_its_own_result(spec: MemorySpec, codec: str) -> None:
    part = Cache.of((spec,), codec).parts[0]
    left, right = formula(part).split(" = ")
    left = left.replace(",", "") if "(k, v)" not in left else left.replace(", v", " v")
    left = re.sub(r"\([a-z]+( [a-z]+)*\)", "", left)  # names of planes
    left = left.replace(",", "").replace(" x ", " * ")
    expression = re.sub(r"[A-Za-z_][\w]*", "", left)
    value = eval(re.sub(r"(\d+)/(\d+)", r"(\1/\2)", expression))
    told = float(re.sub(r"[^\d.]", "", right.split(" bytes")[0]))
    assert value == pytest.approx(told, rel=1e-5), expression


def test_the_formula_reads_as_people_write_it() -> None:
    text = formula(Cache.of((FULL,), "bf16").parts[0])
    assert text == ("32 layers x 2 (k, v) x 8 heads x 128 dim x 2 bytes = 131,072 bytes per token")


@given(memories, st.integers(1, 40), st.integers(1, 700), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_most_users_and_longest_context_against_trying_each(
    specs: list[MemorySpec], room_mib: int, context: int, users: int
) -> None:
    room = room_mib * 2**20
    base = scenario(*specs, memory_bytes=room, weights_bytes=0, context_tokens=context, users=users)
    base = replace(base, headroom=Headroom.parse("0%"))
    fitting = [n for n in range(1, 3000) if n * base.rank_cache.held_bytes(context) <= room]
    if len(fitting) < 2999:
        assert base.max_users() == len(fitting)
    longest = base.max_context_tokens()
    shared = replace(base, shared_tokens=100)
    users_shared = [n for n in range(1, 3000) if shared.held_bytes(n, context) <= room]
    if len(users_shared) < 2999:
        assert shared.max_users() == len(users_shared)
    if longest is not None:
        assert base.held_bytes(users, longest) <= room or longest == 0
        assert base.held_bytes(users, longest + 1) > room
    else:
        assert base.held_bytes(users, 10**9) <= room


def test_largest_finds_the_edge_of_every_predicate() -> None:
    for edge in (0, 1, 2, 3, 7, 8, 9, 1000, 12345):
        assert largest(lambda n, edge=edge: n <= edge, 2**40) == edge
    assert largest(lambda n: True, 77) == 77


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (3, 3)])
def test_heads_are_split_and_repeated_with_fewer_than_ranks(ranks: int, heads: int) -> None:
    whole, rank = Cache.of((FULL,), "bf16"), Cache.of((FULL,), "bf16").on_one_rank(ranks)
    assert rank.growing_bytes_per_token == Fraction(131_072 * heads, 8)
    assert ranks * rank.logical_bytes(1000) >= whole.logical_bytes(1000)


def test_latents_are_whole_on_every_rank_and_weights_split() -> None:
    one, eight = scenario(MLA, INDEX), scenario(MLA, INDEX, n_devices=8)
    assert eight.cache_bytes == one.cache_bytes
    assert eight.weights_bytes == one.weights_bytes // 8


def test_room_is_memory_less_weights_and_headroom() -> None:
    base = scenario(users=3)
    assert base.cache_room_bytes == 24 * GIB - 16 * GIB - int(2.4 * GIB)
    assert base.cache_bytes == 3 * 131_072 * 4000
    assert base.margin_bytes == base.cache_room_bytes - base.cache_bytes
    too_much = scenario(weights_bytes=30 * GIB)
    assert (too_much.fits, too_much.max_users(), too_much.max_context_tokens()) == (False, 0, 0)


def test_headroom_is_a_share_or_a_size() -> None:
    assert Headroom.parse("2GiB").of(80 * GIB) == 2 * GIB
    assert Headroom.parse("12.5%").of(80 * GIB) == 10 * GIB
    for wrong in ("120%", "x%", "-1%", "much"):
        with pytest.raises(ConfigError, match="--headroom"):
            Headroom.parse(wrong)


def test_a_shared_start_is_held_once() -> None:
    base = scenario(users=50)
    shared = replace(base, shared_tokens=1000)
    blocks = 1000 // 16 * 16
    assert base.cache_bytes - shared.cache_bytes == 49 * blocks * 131_072
    # Whatever is shared, the newest token's block is each one's own.
    assert replace(base, shared_tokens=4000).cache_bytes == (3984 + 50 * 16) * 131_072
    # Rows of 128 tokens: 1,000 tokens fill 7 of a block's 16 rows, and no block.
    compressed = scenario(COMPRESSED, users=50)
    assert replace(compressed, shared_tokens=1000).cache_bytes == compressed.cache_bytes
    # Only what keeps every token can be shared in whole: a window lets its start go.
    windowed = scenario(WINDOW, users=50)
    assert replace(windowed, shared_tokens=1000).cache_bytes == windowed.cache_bytes


def test_every_single_change_fits_and_asks_for_no_more_than_it_must() -> None:
    base = scenario(users=50, kv="bf16")
    devices = (Device("small", 26 * GIB), Device("large", 80 * GIB), Device("larger", 90 * GIB))
    found = {change.name: change for change in single_changes(base, devices)}
    assert {"shared prefix", "offload to RAM", "offload to disk", "window", "fewer users",
            "shorter context", "more devices", "other device"} <= set(found)  # fmt: skip
    assert all(change.scenario.fits for change in found.values())
    assert "kv int8" not in found, "8 bit alone is not enough here"

    prefix = found["shared prefix"].scenario
    assert not replace(prefix, shared_tokens=prefix.shared_tokens - 16).fits
    users = found["fewer users"].scenario
    assert not replace(users, users=users.users + 1).fits
    shorter = found["shorter context"].scenario
    assert not replace(shorter, context_tokens=shorter.context_tokens + 16).fits
    window = found["window"].scenario.whole_cache.parts[0].memory.residency
    assert isinstance(window, Window)
    assert window.sink_tokens == DEFAULT_SINK_TOKENS
    assert not with_window(base, window.window_tokens + 16).fits
    assert found["other device"].scenario.device.name == "large"
    assert found["more devices"].scenario.n_devices == 2


def test_changes_come_cheapest_first_and_the_points_say_so() -> None:
    changes = single_changes(scenario(users=20), (Device("large", 80 * GIB),))
    assert [change.name for change in changes][:1] == ["kv fp8"]
    assert [c.cost.points for c in changes] == sorted(c.cost.points for c in changes)
    assert all(change.cost.text and change.flags for change in changes)


@pytest.mark.parametrize(
    ("specs", "users"),
    [((FULL,), 50), ((FULL, WINDOW), 4000), ((MLA, INDEX, COMPRESSED), 4000), ((STATE,), 20000)],
)
def test_the_cheapest_combination_is_the_cheapest_of_all(
    specs: tuple[MemorySpec, ...], users: int
) -> None:
    base = scenario(*specs, users=users)
    devices = (Device("large", 40 * GIB), Device("larger", 80 * GIB))
    answer = answer_goal(base, Goal(base.users, 4000), devices)
    assert answer.combination is not None
    assert len(answer.combination) > 1
    assert answer.combination[-1].scenario.fits
    # Whatever is cheaper holds a change that would do alone, with the rest for nothing.
    alone = {change.flags for change in answer.singles}
    every = list(chosen(answer.base))
    every += [more for c in every if c for more in completed(c, answer.base, devices)]
    fitting = [c for c in every if len(c) > 1 and c[-1].scenario.fits]
    assert len(fitting) > 20
    for changes in fitting:
        if points(changes) < points(answer.combination):
            assert alone & {change.flags for change in changes} or len(changes) > 2


def test_a_goal_that_fits_needs_nothing() -> None:
    answer = answer_goal(scenario(), Goal(2, 1000), ())
    assert (answer.base.fits, answer.singles, answer.combination) == (True, (), None)


@pytest.mark.parametrize("text", ["users=50", "users=0,context=4", "cats=1", "users=a,context=3"])
def test_a_goal_says_both_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--goal"):
        Goal.parse(text)


def test_the_ceiling_is_bytes_over_bandwidth_of_the_users_that_fit() -> None:
    base = scenario(users=4)
    ceiling = decode_ceiling(base)
    assert ceiling is not None
    read = 16 * GIB + 4 * 131_072 * 4000
    assert ceiling.step_s == pytest.approx(read / 10**12)
    assert ceiling.tokens_per_s == pytest.approx(4 / (read / 10**12))
    many = decode_ceiling(scenario(users=1000))
    assert many is not None
    assert many.users == scenario(users=1000).max_users()
    # Sparse attention may skip latents, so that only its index must be read.
    sparse = decode_ceiling(scenario(MLA, INDEX))
    assert sparse is not None
    assert sparse.cache_read_bytes == 27 * 128 * 2 * 4000
    # A start that all share may be read once for all of them.
    shared = decode_ceiling(replace(base, shared_tokens=1600))
    assert shared is not None
    assert shared.cache_read_bytes == (4 * 2400 + 1600) * 131_072
    assert decode_ceiling(scenario(weights_bytes=40 * GIB)) is None


def test_equal_lengths_are_plain_division() -> None:
    for n_bytes, room in ((100, 1000), (7, 1000), (333, 1000), (1001, 1000)):
        assert max_users([n_bytes], (1.0,), room, 0.99) == room // n_bytes


def test_sizes_without_a_common_step_are_off_by_one_user_at_most() -> None:
    """Against the exact binomial: conversations of two sizes, whose only common step is a byte."""
    small, large, room = 1_000_003, 3_000_017, 400_000_000
    assert not Grid.of([small, large], room).exact
    users = max_users([small, large], (0.5, 0.5), room, 0.99)

    def fits(n: int) -> float:
        most = (room - n * small) // (large - small)
        return sum(comb(n, k) for k in range(min(n, most) + 1)) / 2**n

    exact = largest(lambda n: n == 0 or fits(n) >= 0.99, 400)
    assert abs(users - exact) <= 1


def test_users_of_mixed_lengths_against_seeded_monte_carlo() -> None:
    """The probability at the answer and one past it, each within the error of 20,000 draws."""
    lengths = parse_lengths("lognormal:mean=4000,p95=12000", None, 131_072)
    held = [Cache.of((FULL,), "bf16").held_bytes(n) for n in lengths.tokens]
    room = 60 * GIB
    users = max_users(held, lengths.probabilities, room, 0.99)
    random = Random(7)
    n_draws = 4000

    def share(n_users: int) -> float:
        draws = (
            sum(random.choices(held, lengths.probabilities, k=n_users)) for _ in range(n_draws)
        )
        return sum(total <= room for total in draws) / n_draws

    error = 4 * (0.99 * 0.01 / n_draws) ** 0.5
    assert share(users) > 0.99 - error
    assert share(users + 6) < 0.99 + error
    assert users < room / sum(b * p for b, p in zip(held, lengths.probabilities, strict=True))


def test_a_lognormal_has_the_mean_and_p95_asked_for() -> None:
    lengths = parse_lengths("lognormal:mean=4000,p95=12000", None, 10**7)
    assert lengths.mean_tokens == pytest.approx(4000, rel=0.003)
    assert lengths.quantile(0.95) == pytest.approx(12000, rel=0.003)
    assert sum(lengths.probabilities) == pytest.approx(1)


def test_a_lognormal_that_cannot_be_is_said_to_be_so() -> None:
    near = parse_lengths("lognormal:mean=4000,p95=16000", None, None)
    assert near.quantile(0.95) == pytest.approx(16000, rel=0.003)
    assert near.mean_tokens == pytest.approx(4136, rel=0.01)
    assert near.notes[0].value == "4,136 tokens"
    with pytest.raises(ConfigError, match="mean is at least 10,34"):
        parse_lengths("lognormal:mean=4000,p95=40000", None, None)


def test_lengths_end_at_the_context(tmp_path) -> None:
    lengths = parse_lengths("lognormal:mean=4000,p95=12000", 8000, None)
    assert lengths.tokens[-1] == 8000
    file = tmp_path / "lengths.csv"
    file.write_text("id,tokens\na,100\nb,300\nc,9000\n")
    lengths = parse_lengths(str(file), 8000, None)
    assert lengths.tokens == (100, 300, 8000)
    assert lengths.mean_tokens == pytest.approx(2800)
    file.write_text("100\n100\n400\n")
    plain = parse_lengths(str(file), None, None)
    assert (plain.tokens, plain.quantile(0.5)) == ((100, 400), 100)
    for text in ("tokens\n", "tokens\nabc\n", ""):
        file.write_text(text)
        with pytest.raises(ConfigError, match="--lengths"):
            parse_lengths(str(file), None, None)
    for wrong in ("lognormal:mean=4", "lognormal:mean=9,p95=4", "normal:mean=3", "no-such.csv"):
        with pytest.raises(ConfigError, match="--lengths"):
            parse_lengths(wrong, None, None)


def test_quantiles_of_a_list_of_lengths() -> None:
    lengths = Lengths("", (1, 2, 3, 4), (0.25, 0.25, 0.25, 0.25))
    assert [lengths.quantile(p) for p in (0.25, 0.26, 0.5, 0.95, 1.0)] == [1, 2, 2, 4, 4]


def test_weights_in_another_type() -> None:
    weights = in_dtype(Parameters(8_030_261_248, 8_030_261_248, "file"), "bf16", "test")
    assert weights.n_bytes == 16_060_522_496
    narrow = requantised(weights, "int4")
    assert narrow is not None
    assert narrow.n_bytes == 8_030_261_248 * 17 // 32
    assert all(4 <= bits <= 32 for bits in BITS.values())
