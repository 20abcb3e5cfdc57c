"""How much of each prompt was reused, from where, and why no more: for /v1/explain and `explain`.

The last requests of each tenant, as few numbers and the tokens around the place where reuse ended.
What another tenant did is never told beyond that it was one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdover.cache.evictions import Eviction
from holdover.cache.explain import Reuse
from holdover.server.limits import EXPLAINED_REQUESTS
from holdover.server.tokens import TokenizerLike
from holdover.server.turns import Change

_NAMED_REQUESTS = 16384  # as many as the cache remembers evictions
_SHOWN_TOKENS = 8  # of the text before the place
_CHANGES: dict[str, str] = {
    "template_changed": "the same messages were rendered with another chat template before",
    "other_model": "the same messages were computed by another model, or with other weights, "
    "codec, or cache settings, before",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of a prompt before the cache is asked."""

    change: Change | None = None
    note: str | None = None  # how the history became the prompt


@dataclass(frozen=True, slots=True)
class Explained:
    """One prompt. Tokens rather than text: most are never asked for."""

    reuse: Reuse
    origin: Origin
    before: tuple[int, ...]  # the last tokens that were reused
    at_s: float  # time.time()

    @classmethod
    def of(cls, reuse: Reuse, origin: Origin, prompt: Sequence[int]) -> Explained:
        before = tuple(prompt[max(0, reuse.position - _SHOWN_TOKENS) : reuse.position])
        return cls(reuse, origin, before, time.time())

    @property
    def reason(self) -> str:
        """A code: the cache's own, unless the prompt came to be in another way than before."""
        if self.origin.change is not None and self.reuse.reason in ("nothing", "new", "differs"):
            return self.origin.change
        return self.reuse.reason


@dataclass(slots=True)
class Book:
    """Event loop only. With `hides_kept`, what was kept may be another tenant's: its text is not
    shown."""

    tokenizer: TokenizerLike
    hides_kept: bool
    _names: OrderedDict[str, str] = field(default_factory=OrderedDict)  # by the engine's ids
    _of: dict[str, OrderedDict[str, list[Explained]]] = field(default_factory=dict)

    def named(self, engine_id: str, name: str) -> None:
        """What the client calls the engine's request."""
        self._names[engine_id] = name
        if len(self._names) > _NAMED_REQUESTS:
            self._names.popitem(last=False)

    def note(self, tenant: str, name: str, explained: Explained) -> None:
        """Of one prompt of a request, in their order."""
        eviction = explained.reuse.eviction
        if eviction is not None:
            known = None if eviction.owner is None else self._names.get(eviction.owner, "")
            told = replace(eviction, owner=known, tokens=b"")
            explained = replace(explained, reuse=replace(explained.reuse, eviction=told))
        requests = self._of.setdefault(tenant, OrderedDict())
        requests.setdefault(_key(name), []).append(explained)
        if len(requests) > EXPLAINED_REQUESTS:
            requests.popitem(last=False)

    def explanation(self, tenant: str, name: str) -> dict[str, Any] | None:
        """None for what is unknown."""
        requests = self._of.get(tenant)
        found = None if requests is None else requests.get(_key(name))
        if found is None:
            return None
        first, *others = map(self._told, found)
        return first | ({"other_prompts": others} if others else {})

    def _told(self, explained: Explained) -> dict[str, Any]:
        reuse = explained.reuse
        told: dict[str, Any] = {
            "prompt_tokens": reuse.prompt_tokens,
            "reused_tokens": reuse.reused_tokens,
            "from": {place: n for place, n in reuse.from_tiers.items() if n},
            "reason": explained.reason,
            "position": reuse.position,
            "text": self._sentence(explained),
        }
        if reuse.prompt_end_was_kept:
            told["prompt_end_was_kept"] = True
        if reuse.requantised_tokens:
            told["requantised_tokens"] = reuse.requantised_tokens
        if explained.before:
            told["text_before"] = self.tokenizer.decode(explained.before)
        if reuse.decision is not None:
            told["predicted_load_s"] = reuse.decision.load_s
            told["predicted_compute_s"] = reuse.decision.compute_s
        if explained.origin.note is not None:
            told["history"] = explained.origin.note
        return told

    def _sentence(self, explained: Explained) -> str:
        if explained.origin.change is not None and explained.reason == explained.origin.change:
            return _CHANGES[explained.origin.change]
        return _SENTENCES[explained.reuse.reason](self, explained)

    def _differs(self, explained: Explained) -> str:
        reuse = explained.reuse
        text = f"the prompt differs from what was kept at token {reuse.position}"
        if reuse.kept_token is None or reuse.prompt_token is None or self.hides_kept:
            return text
        given = self.tokenizer.token_text(reuse.prompt_token)
        return f"{text}: {given!r} instead of {self.tokenizer.token_text(reuse.kept_token)!r}"

    def _evicted(self, explained: Explained) -> str:
        eviction = explained.reuse.eviction
        assert eviction is not None, "evicted has an eviction"
        ago_s = max(0.0, explained.at_s - eviction.at_s)
        what = f"what was kept from token {explained.reuse.position} on"
        return f"{what} was evicted {ago_s:.1f} s before, {_for(eviction)}"


def _all(book: Book, explained: Explained) -> str:
    if explained.reuse.prompt_end_was_kept:
        return (
            "all was reused but the last token, for which the first of the answer did not wait: "
            "the last hidden state of the same prompt was kept"
        )
    return "all was reused but the last token, which has to be computed"


def _nothing(book: Book, explained: Explained) -> str:
    return (
        "no prefix of this API key is kept; prefixes of other keys are not shared "
        "(--share-prefixes)"
    )


def _slower(book: Book, explained: Explained) -> str:
    decision = explained.reuse.decision
    assert decision is not None, "slower has a decision"
    return (
        f"loading was predicted to take {decision.load_s:.3g} s, "
        f"computing {decision.compute_s:.3g} s"
    )


_SENTENCES: dict[str, Callable[[Book, Explained], str]] = {
    "all": _all,
    "nothing": _nothing,
    "new": lambda book, e: f"what was kept ends at token {e.reuse.position}; the rest is new",
    "differs": Book._differs,
    "evicted": Book._evicted,
    "slower": _slower,
    "failed": lambda book, e: f"a load from a tier failed: {e.reuse.problem}",
    "no_room": lambda book, e: "there was no room for a copy of the block that is kept partly",
}


def _for(eviction: Eviction) -> str:
    if eviction.owner is None:
        return "for a request of another API key"
    return f"for request {eviction.owner}" if eviction.owner else "for an earlier request"


def _key(name: str) -> str:
    """A request's id, however the client has learned it."""
    for kind in ("chatcmpl-", "cmpl-", "resp_"):
        if name.startswith(kind):
            return name[len(kind) :]
    return name
