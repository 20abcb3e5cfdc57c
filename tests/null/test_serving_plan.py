"""The budget identity, context limits and conversation counts over random geometries."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.codecs.base import uniform
from holdover.errors import BudgetError, ConfigError
from holdover.plan.budget import Budget, KvBudget, MachineBudget, TotalBudget, flag_bytes
from holdover.plan.machine import Machine
from holdover.plan.report import field_rows, memory_items, plan_json, ranges_text
from holdover.plan.serving import (
    Parts,
    PartsFor,
    ServingPlan,
    Subject,
    arena_needed_bytes,
    most_usable_bytes,
    solve,
    tables_bytes,
)
from holdover.plan.warnings import plan_warnings
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.limits import Limits
from holdover.spec.residency import Chunk, Full, Window
from holdover.spec.sparse import Sparse
from holdover.units import parse_bytes

RESIDENCIES = st.one_of(
    st.builds(Full),
    st.builds(Window, st.integers(1, 200), st.integers(0, 20)),
    st.builds(Chunk, st.integers(1, 200)),
)
LAYERS = st.builds(
    LayerSpec, st.builds(attention_planes, st.integers(1, 3), st.sampled_from((8, 24))), RESIDENCIES
)


@st.composite
def layouts(draw: st.DrawFn) -> CacheLayout:
    kinds = draw(st.lists(LAYERS, min_size=1, max_size=3))
    layers = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    sparse = draw(st.none() | st.builds(Sparse, st.integers(1, 9), dense_layers=st.integers(0, 2)))
    spec = CacheSpec.of(tuple(layers), draw(st.sampled_from((1, 3, 16))), sparse)
    return CacheLayout.of(spec, uniform(draw(st.sampled_from(("fp32", "bf16")))))


def subject(context_tokens: int = 4096) -> Subject:
    return Subject("m", "llama", "fp32", "fp32", "reference", context_tokens)


def growing_parts(layout: CacheLayout) -> PartsFor:
    """Parts that depend on every limit, as the real ones do."""

    def parts_for(limits: Limits) -> Parts:
        workspace_bytes = limits.max_context_tokens * 24 + limits.step_tokens * 100
        return Parts(1000, 50_000, workspace_bytes, tables_bytes(layout, limits), 7 * 64)

    return parts_for


def solve_small(layout: CacheLayout, budget: Budget, **more: int) -> ServingPlan:
    return solve(
        subject(), layout, growing_parts(layout), budget, max_sequences=4, step_tokens=32, **more
    )


BUDGETS = st.one_of(
    st.builds(KvBudget, st.integers(1, 2**24)),
    st.builds(TotalBudget, st.integers(1, 2**24)),
    st.builds(
        MachineBudget, st.builds(Machine, st.integers(0, 2**25), st.just("MemAvailable"),
                                 st.just(2), st.just(False)),
    ),
)  # fmt: skip


@given(layouts(), BUDGETS)
def test_every_plan_adds_up_and_its_context_is_the_longest_that_fits(
    layout: CacheLayout, budget: Budget
) -> None:
    parts_for = growing_parts(layout)
    try:
        plan = solve_small(layout, budget)
    except BudgetError:
        limits = Limits(4, 32, 1)
        kv = budget.kv_bytes(parts_for(limits).total_bytes, most_usable_bytes(layout, limits))
        assert arena_needed_bytes(layout, limits) > kv
        return
    assert sum(memory_items(plan).values()) == plan.memory_bytes
    assert plan.arena_bytes % layout.sector_bytes == 0
    assert plan.parts == parts_for(plan.limits)
    if isinstance(budget, KvBudget):
        assert plan.arena_bytes + plan.slack_bytes == budget.n_bytes
    if isinstance(budget, TotalBudget):
        assert plan.memory_bytes == budget.n_bytes
    context = plan.limits.max_context_tokens
    assert layout.sectors_for(layout.peak_blocks(context, 32)) <= plan.n_sectors
    if context < 4096:  # one token more must not fit, with the parts it would bring
        longer = replace(plan.limits, max_context_tokens=context + 1)
        kv = budget.kv_bytes(parts_for(longer).total_bytes, most_usable_bytes(layout, longer))
        assert arena_needed_bytes(layout, longer) > kv


@given(layouts(), st.integers(2**16, 2**24))
def test_the_total_of_a_kv_plan_given_as_memory_makes_the_same_plan(
    layout: CacheLayout, kv_bytes: int
) -> None:
    try:
        plan = solve_small(layout, KvBudget(kv_bytes))
    except BudgetError:
        return
    again = solve_small(layout, TotalBudget(plan.memory_bytes))
    assert memory_items(again) == memory_items(plan)
    assert again.limits == plan.limits


class SectorFiller:
    """Places whole conversations block by block, as an arena would, until one does not fit."""

    def __init__(self, plan: ServingPlan) -> None:
        self.free_sectors = plan.n_sectors
        self.per_sector = plan.layout.blocks_per_sector
        self.free_slots = [0] * len(self.per_sector)

    def place(self, n_blocks: tuple[int, ...]) -> bool:
        for group, count in enumerate(n_blocks):
            for _ in range(count):
                if self.free_slots[group] == 0:
                    if self.free_sectors == 0:
                        return False
                    self.free_sectors -= 1
                    self.free_slots[group] = self.per_sector[group]
                self.free_slots[group] -= 1
        return True


@given(layouts(), st.integers(2**12, 2**18), st.sampled_from((1, 50, 256, 1024)))
def test_conversations_that_fit_agree_with_filling_an_arena(
    layout: CacheLayout, kv_bytes: int, context_tokens: int
) -> None:
    try:
        plan = solve_small(layout, KvBudget(kv_bytes))
    except BudgetError:
        return
    row = plan.conversations(context_tokens)
    if context_tokens > plan.limits.max_context_tokens:
        assert row.fit == 0
        assert row.reason is not None
        return
    filler = SectorFiller(plan)
    placed = 0
    while filler.place(layout.peak_blocks(context_tokens, step_tokens=1)):
        placed += 1
    assert row.fit == placed
    assert row.held_bytes >= row.logical_bytes


@given(layouts(), BUDGETS, st.sampled_from((None, 1, 100, 3000)))
def test_the_budget_that_an_error_names_works(
    layout: CacheLayout, budget: Budget, asked: int | None
) -> None:
    more = {} if asked is None else {"asked_context_tokens": asked}
    try:
        solve_small(layout, budget, **more)
    except BudgetError as error:
        named = re.findall(r"--(kv-memory|memory) ([\w.]+\w)", str(error))
        plans = [
            solve_small(layout, {"kv-memory": KvBudget, "memory": TotalBudget}[flag](
                parse_bytes(size)), **more)
            for flag, size in named
        ]  # fmt: skip
        assert plans[0].limits.max_context_tokens >= (asked or (1024 if len(plans) > 1 else 1))


def one_group(residency: Full | Window = Full()) -> CacheLayout:  # noqa: B008
    layers = (LayerSpec(attention_planes(2, 32), residency),) * 3
    return CacheLayout.of(CacheSpec.of(layers, 16), uniform("fp32"))


def test_a_context_asked_for_that_does_not_fit_names_both_numbers() -> None:
    layout = one_group()  # 3 layers x 2 planes x 2 heads x 32 x 4 bytes x 16 tokens = 24 KiB
    with pytest.raises(BudgetError) as caught:
        solve_small(layout, KvBudget(100 * 1024), asked_context_tokens=2048)
    text = str(caught.value)
    assert "--max-context 2048: 64 tokens fit; 2048 need 3.0 MiB" in text
    assert "Give --kv-memory 3MiB, or --max-context 64" in text


def test_too_small_a_budget_names_the_least_that_works() -> None:
    # A conversation of 1024 tokens is 64 blocks of 24 KiB.
    with pytest.raises(BudgetError, match=r"Give --kv-memory 2MiB, which holds .* 1024 tokens; "
                       r"the least is --kv-memory 24KiB, for 16 tokens"):  # fmt: skip
        solve_small(one_group(), KvBudget(20_000))
    assert solve_small(one_group(), KvBudget(24 * 1024)).limits.max_context_tokens == 16


def test_a_context_beyond_the_models_own_is_refused_and_what_set_it_is_said() -> None:
    with pytest.raises(ConfigError, match="--max-context: 5000 is more than the 4096 tokens"):
        solve_small(one_group(), KvBudget(2**24), asked_context_tokens=5000)
    assert solve_small(one_group(), KvBudget(2**24)).context_set_by == "model"
    assert solve_small(one_group(), KvBudget(2**20)).context_set_by == "budget"
    asked = solve_small(one_group(), KvBudget(2**24), asked_context_tokens=100)
    assert asked.context_set_by == "--max-context"


def test_a_plan_beyond_the_machine_is_warned_of_with_the_number_that_fits() -> None:
    machine = Machine(12 * 2**20, "cgroup limit", 2, False)
    plan = solve_small(one_group(), KvBudget(2**24))
    (text,) = plan_warnings(plan, machine, "--kv-memory")
    assert "takes 16.2 MiB" in text
    assert "12.0 MiB available (cgroup limit)" in text
    assert text.endswith("--kv-memory 11MiB would fit")
    assert not plan_warnings(solve_small(one_group(), KvBudget(11 * 2**20)), machine, "--kv-memory")
    (text,) = plan_warnings(plan, replace(machine, available_bytes=100_000), "--kv-memory")
    assert text.endswith("take a smaller model")
    assert "No budget would work here" in text
    parts = replace(plan.parts, tiers_bytes=2**30)
    tiered = replace(plan, parts=parts, memory_bytes=plan.memory_bytes + 2**30)
    (text,) = plan_warnings(tiered, machine, "--kv-memory")
    assert "1.0 GiB of that --tiers; free memory or give smaller --tiers" in text


def test_a_context_too_short_for_a_chat_is_warned_of_with_what_would_do() -> None:
    machine = Machine(2**30, "cgroup limit", 2, False)
    plan = solve_small(one_group(), KvBudget(24 * 1024))
    (text,) = plan_warnings(plan, machine, "--kv-memory")
    assert "can have 16 tokens" in text
    assert "--kv-memory 2MiB holds 1024" in text
    assert not plan_warnings(solve_small(one_group(), KvBudget(2**21)), machine, "--kv-memory")
    wanted = solve_small(one_group(), KvBudget(24 * 1024), asked_context_tokens=16)
    assert not plan_warnings(wanted, machine, "--kv-memory")


def test_the_parts_alone_above_the_memory_are_said_to_be_too_much() -> None:
    with pytest.raises(
        BudgetError, match=r"too much.*Give --memory 2MiB,.*the least is --memory \d+KiB"
    ):
        solve_small(one_group(), TotalBudget(10_000))


def test_the_default_takes_half_of_the_rest_and_no_more_than_can_be_used() -> None:
    layout, parts_bytes = one_group(), 0

    def default_plan(available_bytes: int) -> ServingPlan:
        machine = Machine(available_bytes, "cgroup limit", 2, False)
        return solve_small(layout, MachineBudget(machine))

    small = default_plan(8 * 2**20)
    parts_bytes = small.parts.total_bytes
    assert small.arena_bytes + small.slack_bytes == (8 * 2**20 - parts_bytes) // 2
    assert "cgroup limit" in small.derivation[1]
    large = default_plan(2**40)
    assert large.arena_bytes == 4 * (4096 // 16) * layout.blocks[0].nbytes
    assert "no more than full conversations can use" in large.derivation[-1]


def test_lengths_that_cannot_be_reached_have_a_reason() -> None:
    layout = one_group()
    plan = solve_small(layout, KvBudget(2**24), asked_context_tokens=2000)
    assert plan.conversations(1024).reason is None
    assert plan.conversations(4096).fit is None
    assert plan.conversations(4096).reason == "--max-context 2000"
    assert plan.conversations(16384).reason == "the model's context is 4096 tokens"
    tight = solve_small(layout, KvBudget(2**20))
    assert tight.conversations(4096).fit == 0
    assert tight.conversations(4096).reason == "the budget holds up to 672 tokens each"


def test_a_window_costs_its_window_not_the_context() -> None:
    full = solve_small(one_group(), KvBudget(2**24)).conversations(4096)
    window = solve_small(one_group(Window(256)), KvBudget(2**24)).conversations(4096)
    assert full.logical_bytes == 4096 * 1536
    assert window.logical_bytes == 255 * 1536
    assert window.fit is not None
    assert full.fit is not None
    assert window.fit > 10 * full.fit


def test_the_json_is_plain_and_its_fields_cover_the_block() -> None:
    plan = solve_small(one_group(), KvBudget(2**22))
    report = json.loads(json.dumps(plan_json(plan, with_fields=True)))
    assert report["schema"] == "holdover.plan/1"
    assert report["memory_bytes"] == sum(report["memory"].values())
    group = report["groups"][0]
    assert (
        sum(f["field_bytes"] + f["padding_bytes"] for f in group["fields"]) == group["block_bytes"]
    )
    assert [row["context_tokens"] for row in report["conversations"]] == [1024, 4096, 16384, 131072]
    assert len(field_rows(plan.layout.blocks[0])) == 6


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(1, "1B"), (1024, "1KiB"), (1025, "2KiB"), (2**20 + 1, "2MiB")]
)
def test_sizes_in_messages_are_rounded_up(n_bytes: int, text: str) -> None:
    assert flag_bytes(n_bytes) == text
    assert parse_bytes(text) >= n_bytes


def test_layer_numbers_read_as_ranges() -> None:
    assert ranges_text((0, 1, 2, 5, 7, 8)) == "0-2, 5, 7-8"
