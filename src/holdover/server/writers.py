"""How the two endpoints word the engine's events: logprobs, roles, text offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from holdover.engine.api import Event, TokenLogprob
from holdover.server.generation import Answer
from holdover.server.limits import LEAST_LOGPROB
from holdover.server.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    TopLogprob,
    Usage,
)
from holdover.server.replies import TokenLogprob as ReplyTokenLogprob
from holdover.server.tokens import TokenizerLike


class Head(TypedDict):
    """What every piece of one response begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(slots=True)
class ChatWriter:
    head: Head
    tokenizer: TokenizerLike
    logprobs: bool
    _opened: set[int] = field(default_factory=set)

    def pieces(self, event: Event) -> Sequence[ChatChunk]:
        pieces = []
        if event.index not in self._opened:
            self._opened.add(event.index)
            pieces.append(self._chunk(event.index, Delta(role="assistant", content="")))
        if event.text or event.logprobs:
            logprobs = self._logprobs(event.logprobs)
            pieces.append(self._chunk(event.index, Delta(content=event.text), logprobs))
        if event.finish_reason is not None:
            pieces.append(self._chunk(event.index, Delta(), None, event.finish_reason))
        return pieces

    def only_text(self, event: Event) -> bool:
        return _only_text(event) and not self.logprobs and event.index in self._opened

    def text_piece(self, index: int, text: str) -> ChatChunk:
        return self._chunk(index, Delta(content=text))

    def usage(self, usage: Usage) -> ChatChunk:
        return ChatChunk(**self.head, choices=[], usage=usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=i,
                message=ChatMessage(content=answer.text),
                logprobs=self._logprobs(answer.logprobs),
                finish_reason=answer.finish_reason or "stop",
            )
            for i, answer in enumerate(answers)
        ]
        return ChatCompletion(**self.head, choices=choices, usage=usage)

    def _chunk(
        self,
        index: int,
        delta: Delta,
        logprobs: ChatLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason
        )
        return ChatChunk(**self.head, choices=[choice])

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not self.logprobs:
            return None
        return ChatLogprobs(content=[self._token(token) for token in tokens])

    def _token(self, token: TokenLogprob) -> ReplyTokenLogprob:
        own = self._alternative(token.token_id, token.logprob)
        return ReplyTokenLogprob(
            token=own.token,
            bytes=own.bytes,
            logprob=own.logprob,
            top_logprobs=[self._alternative(*top) for top in token.top],
        )

    def _alternative(self, token_id: int, logprob: float) -> TopLogprob:
        return TopLogprob(
            token=self.tokenizer.token_text(token_id),
            bytes=list(self.tokenizer.token_bytes(token_id)),
            logprob=finite(logprob),
        )


@dataclass(slots=True)
class CompletionWriter:
    head: Head
    tokenizer: TokenizerLike
    logprobs: bool
    echoes: Sequence[str]  # for each answer, the text that goes before it
    _opened: set[int] = field(default_factory=set)
    _offsets: dict[int, int] = field(default_factory=dict)

    def pieces(self, event: Event) -> Sequence[Completion]:
        text = event.text
        if event.index not in self._opened:
            self._opened.add(event.index)
            text = self.echoes[event.index] + text
        if not (text or event.logprobs or event.finish_reason):
            return ()
        return (self._piece(event.index, text, event.logprobs, event.finish_reason),)

    def only_text(self, event: Event) -> bool:
        return _only_text(event) and not self.logprobs and event.index in self._opened

    def text_piece(self, index: int, text: str) -> Completion:
        return self._piece(index, text, (), None)

    def usage(self, usage: Usage) -> Completion:
        return Completion(**self.head, choices=[], usage=usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> Completion:
        choices = [
            self._choice(i, self.echoes[i] + answer.text, answer.logprobs, answer.finish_reason)
            for i, answer in enumerate(answers)
        ]
        return Completion(**self.head, choices=choices, usage=usage)

    def _piece(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob], finish_reason: str | None
    ) -> Completion:
        choice = self._choice(index, text, logprobs, finish_reason)
        return Completion(**self.head, choices=[choice])

    def _choice(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob], finish_reason: str | None
    ) -> CompletionChoice:
        shown = self._logprobs(index, logprobs) if self.logprobs else None
        return CompletionChoice(index=index, text=text, logprobs=shown, finish_reason=finish_reason)

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        offsets = []
        at = self._offsets.get(index, len(self.echoes[index]))
        for token in tokens:
            offsets.append(at)
            at += self._n_characters(token.token_id)
        self._offsets[index] = at
        return CompletionLogprobs(
            tokens=[self._name(token.token_id) for token in tokens],
            token_logprobs=[finite(token.logprob) for token in tokens],
            top_logprobs=[
                {self._name(top): finite(logprob) for top, logprob in token.top} for token in tokens
            ],
            text_offset=offsets,
        )

    def _n_characters(self, token_id: int) -> int:
        """Characters of the answer that begin in this token; none in a special one."""
        if not self.tokenizer.decode([token_id]):
            return 0
        return sum(byte & 0xC0 != 0x80 for byte in self.tokenizer.token_bytes(token_id))

    def _name(self, token_id: int) -> str:
        """The token's text, or its bytes where it is not text: names must not coincide."""
        raw = self.tokenizer.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _only_text(event: Event) -> bool:
    return bool(event.text) and event.finish_reason is None


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
