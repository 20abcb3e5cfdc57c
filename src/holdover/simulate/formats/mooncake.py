"""Mooncake's traces: a line for each request, and ids of its prompt's blocks of 512 tokens.

{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}

An id stands for a block and all that comes before it, over the whole trace; the last block may be
partly filled. `timestamp` is in ms. Source: Qin et al., "Mooncake: Trading More Storage for Less
Computation", FAST 2025, and its repository.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdover.simulate.formats.base import Fields, SmallIds
from holdover.simulate.trace import Ids, Line, Request, Trace
from holdover.units import ceil_div

NAME = "Mooncake JSONL (timestamp, input_length, output_length, hash_ids)"
BLOCK_TOKENS = 512


def recognises(first: str) -> bool:
    return first.startswith("{") and '"hash_ids"' in first


def read(name: str, lines: Iterator[Line]) -> Trace:
    ids, conversations = SmallIds(), _Conversations()
    requests = [_request(Fields.of(name, n, text), ids) for n, text in lines]
    requests.sort(key=lambda request: request[0])
    found = [
        Request(n_prompt, n_output, blocks, conversations.of(blocks, n_prompt), at_s)
        for at_s, n_prompt, n_output, blocks in requests
    ]
    return Trace(name, "mooncake", BLOCK_TOKENS, tuple(found), conversations.count, False)


def _request(fields: Fields, ids: SmallIds) -> tuple[float, int, int, Ids]:
    n_prompt = fields.whole("input_length", least=1)
    n_output = fields.whole("output_length")
    hashes = fields.items("hash_ids")
    if any(not isinstance(i, int | str) or isinstance(i, bool) for i in hashes):
        raise fields.error("hash_ids holds something that is neither a whole number nor a text")
    if len(hashes) > ceil_div(n_prompt, BLOCK_TOKENS):
        raise fields.error(
            f"hash_ids has {len(hashes)} ids; input_length {n_prompt} is "
            f"{ceil_div(n_prompt, BLOCK_TOKENS)} blocks of {BLOCK_TOKENS} tokens"
        )
    return fields.seconds("timestamp", 1e-3), n_prompt, n_output, ids.of(hashes)


class _Conversations:
    """Who goes on where the latest prompt of a conversation ended is its next turn: a guess, for
    ids do not say it. A prompt's last block is partly filled, so that the next turn has another.
    """

    def __init__(self) -> None:
        self.count = 0
        self._owners: dict[int, int] = {}  # of each id: the conversation that had it first
        self._latest: list[tuple[int, int]] = []  # of each conversation: blocks, tokens of a prompt

    def of(self, blocks: Ids, n_prompt: int) -> int:
        ids: list[int] = blocks.tolist()
        n_known = next((n for n in range(len(ids), 0, -1) if ids[n - 1] in self._owners), 0)
        conversation = self._owners[ids[n_known - 1]] if n_known else self.count
        if n_known:
            n_blocks, n_tokens = self._latest[conversation]
            if n_known < n_blocks - 1 or n_prompt <= n_tokens:
                conversation = self.count  # both only begin alike
        if conversation == self.count:
            self.count += 1
            self._latest.append((0, 0))
        self._latest[conversation] = len(ids), n_prompt
        for i in ids:
            self._owners.setdefault(i, conversation)
        return conversation
