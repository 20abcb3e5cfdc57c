"""One answer as its client sees it: tokens in, events with text out.

Decides when an answer ends. Nothing of a stop string, an end token or half a character is ever
emitted: of a character that max_tokens cuts, nothing. Does not know the cache or the device.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from holdover.engine.api import Event, EventSink, FinishReason
from holdover.engine.sampler import Sampled
from holdover.engine.sequence import Sequence
from holdover.text.detokenize import IncrementalDetokenizer
from holdover.text.stop import StopMatcher
from holdover.text.tokenizer import Tokenizer


@dataclass(slots=True, eq=False)
class Request:
    """What was submitted: `answers` are the open ones by index, the first n - 1 siblings wait."""

    request_id: str
    sink: EventSink
    answers: dict[int, Answer] = field(default_factory=dict)
    held_back: list[Answer] = field(default_factory=list)  # until the first one's prompt is done


class Answer:
    def __init__(
        self, request: Request, index: int, sequence: Sequence, tokenizer: Tokenizer
    ) -> None:
        params = sequence.params
        self.request = request
        self.index = index
        self.sequence = sequence
        self._end_tokens: Collection[int] = {
            *params.stop_token_ids,
            *(() if params.ignore_eos else tokenizer.eos_token_ids),
        }
        self._detokenizer = IncrementalDetokenizer(tokenizer, continues_text=True)
        self._stops = StopMatcher(params.stop)

    def push(self, sampled: Sampled) -> Event:
        """Take the next token; the event has a finish reason if it is the last one."""
        sequence, token = self.sequence, sampled.token_id
        sequence.append(token)
        reason: FinishReason | None = None
        if token in self._end_tokens:
            text, reason = self._stops.flush(), "stop"
        else:
            text, stop = self._stops.push(self._detokenizer.push(token))
            if stop is not None:
                reason = "stop"
            elif sequence.n_generated >= sequence.max_tokens:
                text, reason = text + self._stops.flush(), "length"
        return Event(
            self.index,
            text,
            (token,),
            logprobs=() if sampled.logprob is None else (sampled.logprob,),
            finish_reason=reason,
            usage=None if reason is None else sequence.usage(),
        )

    def end(self, reason: FinishReason, error: str | None = None) -> Event:
        """The last event of an answer that ends from outside."""
        usage = self.sequence.usage()
        return Event(
            self.index, self._stops.flush(), (), finish_reason=reason, usage=usage, error=error
        )
