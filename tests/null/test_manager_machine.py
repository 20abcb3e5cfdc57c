"""The manager under arbitrary orders of its operations, with row contents followed."""

import zlib

import numpy as np
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdover.cache.costs import Costs
from holdover.cache.manager import CacheManager
from holdover.cache.mover import Mover
from holdover.codecs.base import uniform
from holdover.registry import plugin_names
from holdover.spec.groups import CacheSpec
from holdover.spec.layers import LayerSpec, attention_planes, latent_planes
from holdover.spec.layout import CacheLayout
from holdover.spec.residency import Chunk, Full, Window
from holdover.spec.sparse import Sparse

from .machine_arena import RowArena
from .machine_tier import MachineTier

STEP_TOKENS = 7
MAX_TOKENS = 40
MODELS = {
    "full": [Full(), Full()],
    "window": [Window(6)],
    "hybrid": [Window(6), Window(6), Window(6), Full()],
    "sinks": [Window(5, 3), Full(), Full()],
    "endless": [Window(4), Window(9, 2), Window(9, 2)],
    "chunk": [Chunk(8), Chunk(8), Chunk(8), Full()],
    "latent": [*["latent"] * 2, Window(6)],
    "three": [Full(), Window(9), Window(9), Window(4), Window(4), Window(4)],
}
tokens_lists = st.lists(st.integers(0, 1), min_size=1, max_size=MAX_TOKENS)


def crcs(tenant: str, tokens: list[int]) -> list[int]:
    crc, out = zlib.crc32(tenant.encode()), []
    for token in tokens:
        crc = zlib.crc32(bytes([token]), crc)
        out.append(int(np.uint32(crc & ~1).view(np.int32)))  # odd: not exact
    return out


class ManagerMachine(RuleBasedStateMachine):
    models = tuple(MODELS)

    def mover(self, data):
        return None

    def after_build(self):
        pass

    @initialize(
        data=st.data(),
        block_tokens=st.sampled_from([1, 3, 4]),
        extra=st.integers(0, 6),
        eviction=st.sampled_from(plugin_names("holdover.cache.eviction")),
        sparse=st.sampled_from([None, Sparse(2, dense_layers=1)]),
    )
    def build(self, data, block_tokens, extra, eviction, sparse):
        model = data.draw(st.sampled_from(self.models))
        layers = tuple(
            LayerSpec(latent_planes(1, 1), Full())  # rows of one word, as all others
            if residency == "latent"
            else LayerSpec(attention_planes(1, 1), residency)
            for residency in MODELS[model]
        )
        self.layout = CacheLayout.of(CacheSpec.of(layers, block_tokens, sparse), uniform("fp32"))
        peak = self.layout.peak_blocks(MAX_TOKENS, STEP_TOKENS)
        self.arena = RowArena(self.layout, self.layout.sectors_for(peak) + extra)
        self.lifts: list[tuple] = []  # (lift, tenant, tokens)
        self.manager = CacheManager(
            self.layout, self.arena, eviction=eviction, seed=b"w", mover=self.mover(data)
        )
        self.running: list[tuple] = []  # (sequence, all its tokens, crcs)
        self.parked: list[tuple[str, list[int]]] = []
        self.reserved: dict = {}
        self.after_build()

    @rule(
        tokens=tokens_lists,
        tenant=st.sampled_from(["", "a"]),
        n=st.integers(1, STEP_TOKENS),
        promised=st.booleans(),
    )
    def admit(self, tokens, tenant, n, promised):
        self.start(tokens, tenant, n, promised)

    @precondition(lambda self: self.parked)
    @rule(data=st.data(), n=st.integers(1, STEP_TOKENS))
    def resume(self, data, n):
        tenant, tokens = self.parked.pop(data.draw(st.integers(0, len(self.parked) - 1)))
        self.start(tokens, tenant, n, promised=False)

    def start(self, tokens, tenant, n, promised):
        match = self.manager.match(tokens, tenant)
        assert match.n_tokens < len(tokens)
        n = min(n, len(tokens) - match.n_tokens)
        held = self.held_by_sequences
        promise = self.layout.peak_blocks(len(tokens), STEP_TOKENS) if promised else ()
        sequence = self.manager.admit(tokens, match, n, tenant, promise=promise)
        if sequence is None:
            # A lone sequence within the planned context always finds room.
            assert self.running or (promised and self.lifts), "refused on an empty arena"
            assert self.held_by_sequences == held
            return
        assert sequence.n_tokens <= match.n_tokens
        self.running.append((sequence, tokens, crcs(tenant, tokens)))
        self.reserved[sequence] = sequence.n_tokens + n

    @property
    def held_by_sequences(self):
        """Blocks of each one's groups; what waits may be dropped where no room is found."""
        return [[table.n_held for table in sequence.tables] for sequence, *_ in self.running]

    def pick(self, data):
        return self.running[data.draw(st.integers(0, len(self.running) - 1))]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), n=st.integers(1, STEP_TOKENS))
    def step(self, data, n):
        sequence, tokens, sums = self.pick(data)
        n = min(n, len(tokens) - sequence.n_tokens)
        if n == 0:
            return
        if sequence.n_tokens + n > self.reserved[sequence]:
            held = self.held_by_sequences
            if not self.manager.reserve(sequence, n):
                assert len(self.running) > 1, "the only sequence finds no room"
                assert self.held_by_sequences == held
                return
            self.reserved[sequence] = sequence.n_tokens + n
        self.compute(sequence, tokens, sums, n)

    def compute(self, sequence, tokens, sums, n):
        start = sequence.n_tokens
        seen = (
            row[0] for p in range(start) for _, row in self.arena.rows(self.manager, sequence, p)
        )
        mark = any(value & 1 for value in seen)  # what is computed from what is not exact
        for position in range(start, start + n):
            for _, row in self.arena.rows(self.manager, sequence, position):
                row[0] = sums[position] | mark
        self.manager.commit(sequence, tokens[start : start + n])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), resume_later=st.booleans(), more=tokens_lists)
    def release_or_park(self, data, resume_later, more):
        item = self.pick(data)
        sequence, tokens, _ = item
        self.running.remove(item)
        self.manager.release(sequence)
        if resume_later:
            self.parked.append((sequence.tenant, tokens))
        else:  # the next turn of the same conversation
            turn = (tokens[: sequence.n_tokens] + more)[:MAX_TOKENS]
            self.parked.append((sequence.tenant, turn))

    @rule(n=st.one_of(st.none(), st.integers(1, 4)))
    def evict(self, n):
        self.manager.evict(n)

    @invariant()
    def everything_holds(self):
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        for sequence, _, sums in self.running:
            self.arena.verify(self.manager, sequence, sums)

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        for sequence, _, _ in self.running:
            self.manager.release(sequence)
        assert self.manager.held_bytes == 0
        self.manager.evict()
        self.manager.check()
        assert self.manager.cached_bytes == 0


class TieredMachine(ManagerMachine):
    """With tiers that store, forget, fail and answer when they like; one of them requantises."""

    def mover(self, data):
        kinds = data.draw(st.sampled_from(["exact", "coarse", "coarse exact", "exact coarse"]))
        codecs = {"exact": None, "coarse": "coarse"}
        self.tiers = [MachineTier(kind, codecs[kind]) for kind in kinds.split()]
        for tier in self.tiers:
            tier.are_rows_even = True
        return Mover(self.layout, self.tiers, Costs())

    def one_of(self, data):
        return data.draw(st.sampled_from(self.tiers))

    @rule(tokens=tokens_lists, tenant=st.sampled_from(["", "a"]), promised=st.booleans())
    def lift(self, tokens, tenant, promised):
        self.begin_lift(tokens, tenant, promised)

    @precondition(lambda self: self.parked)
    @rule(data=st.data(), promised=st.booleans())
    def lift_next_turn(self, data, promised):
        tenant, tokens = self.parked.pop(data.draw(st.integers(0, len(self.parked) - 1)))
        self.begin_lift(tokens, tenant, promised)

    def begin_lift(self, tokens, tenant, promised):
        match = self.manager.match(tokens, tenant)
        promise = self.layout.peak_blocks(len(tokens), STEP_TOKENS) if promised else ()
        lift = self.manager.lift(tokens, match, tenant, promise)
        if lift is not None:
            assert match.n_tokens < lift.n_tokens < len(tokens)
            self.lifts.append((lift, tenant, tokens))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def whole_turn_goes_down(self, data):
        self.go_down(self.pick(data))

    def go_down(self, item):
        sequence, tokens, sums = item
        self.running.remove(item)
        self.running.append(item)
        while sequence.n_tokens < len(tokens):
            n = min(STEP_TOKENS, len(tokens) - sequence.n_tokens)
            if not self.manager.reserve(sequence, n):
                break
            self.compute(sequence, tokens, sums, n)
        self.running.pop()
        self.manager.release(sequence)
        self.parked.append((sequence.tenant, [*tokens, 0, 1][:MAX_TOKENS]))
        self.manager.poll()
        self.manager.evict()

    @precondition(lambda self: self.lifts)
    @rule(data=st.data(), n=st.integers(1, 40), fails=st.booleans(), polls=st.booleans())
    def answer(self, data, n, fails, polls):
        self.one_of(data).end_loads(n, fails)
        if polls:
            self.manager.poll()

    @precondition(lambda self: self.parked)
    @rule(data=st.data(), again=st.booleans())
    def whole_turn_comes_up(self, data, again):
        """The tiers answer at once; `again`: what it computes goes down, too."""
        tenant, tokens = self.parked.pop(data.draw(st.integers(0, len(self.parked) - 1)))
        n_running = len(self.running)
        self.begin_lift(tokens, tenant, promised=False)
        for tier in self.tiers:
            tier.end_loads(MAX_TOKENS)
        self.manager.poll()
        if self.lifts and self.lifts[-1][0].ended:
            lift, *_ = self.lifts.pop()
            event(f"came up, {lift.problem or 'all'}")
        self.start(tokens, tenant, STEP_TOKENS, promised=False)
        if len(self.running) > n_running:
            event(f"came up exact: {self.running[-1][0].is_exact}")
            if again:
                self.go_down(self.running[-1])

    @rule()
    def poll(self):
        self.manager.poll()

    @precondition(lambda self: self.lifts)
    @rule(data=st.data())
    def give_up(self, data):
        lift, _, _ = self.lifts[data.draw(st.integers(0, len(self.lifts) - 1))]
        self.manager.drop(lift)

    @precondition(lambda self: any(lift.ended for lift, _, _ in self.lifts))
    @rule(n=st.integers(1, STEP_TOKENS), promised=st.booleans())
    def land(self, n, promised):
        item = next(item for item in self.lifts if item[0].ended)
        self.lifts.remove(item)
        lift, tenant, tokens = item
        event(f"landed, {'all came' if lift.problem is None else lift.problem}")
        self.start(tokens, tenant, n, promised)

    @rule(data=st.data())
    def tier_loses(self, data):
        tier = self.one_of(data)
        if tier.held:
            tier.delete(data.draw(st.sampled_from(list(tier.held))))

    @rule(data=st.data(), stores=st.booleans(), loads=st.booleans())
    def tier_mood(self, data, stores, loads):
        tier = self.one_of(data)
        tier.takes_stores, tier.takes_loads = stores, loads

    def teardown(self):
        for lift, _, _ in getattr(self, "lifts", ()):
            self.manager.drop(lift)
        super().teardown()


class CollidingMachine(ManagerMachine):
    """The same with eight keys in all: token ids, not hashes, decide what is a hit.

    Without a full group, runs before the window may be gone and only their keys speak for them.
    """

    models = ("full", "hybrid", "three")

    def after_build(self):
        index = self.manager._index
        digest = index._hash

        def short(parent: bytes, run: bytes) -> bytes:
            whole = digest(parent, run)
            return whole if run.startswith(b"tenant:") else bytes([whole[0] % 8])

        index._hash = short


machine_settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestManager = ManagerMachine.TestCase
TestManager.settings = machine_settings
TestTiers = TieredMachine.TestCase
TestTiers.settings = machine_settings
TestCollisions = CollidingMachine.TestCase
TestCollisions.settings = machine_settings
