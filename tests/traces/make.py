"""Makes the traces of this folder: `python tests/traces/make.py`. The same files every time."""

import json
import random
from pathlib import Path

HERE = Path(__file__).parent
BLOCK_TOKENS = 512


def chats(seed: int = 1, n_conversations: int = 60) -> list[dict]:
    """Users who share a system prompt and come back after a while, in Mooncake's format."""
    choose = random.Random(seed)
    next_id = 3  # 0 to 2: the system prompt
    requests = []
    for _ in range(n_conversations):
        at_ms = choose.uniform(0, 600_000)
        n_tokens = 3 * BLOCK_TOKENS + choose.randrange(200, 3000)
        whole = [0, 1, 2]
        for _ in range(1 + choose.randrange(6)):
            while len(whole) < n_tokens // BLOCK_TOKENS:
                whole.append(next_id)
                next_id += 1
            ids = list(whole)
            if n_tokens % BLOCK_TOKENS:  # the last block is new each turn
                ids.append(next_id)
                next_id += 1
            n_output = 1 + int(choose.expovariate(1 / 150))
            requests.append({
                "timestamp": round(at_ms), "input_length": n_tokens, "output_length": n_output,
                "hash_ids": ids,
            })  # fmt: skip
            at_ms += choose.uniform(10_000, 120_000)
            n_tokens += n_output + choose.randrange(20, 900)
    return sorted(requests, key=lambda request: request["timestamp"])


def agents(seed: int = 2, n_conversations: int = 4) -> list[dict]:
    """Conversations with blocks of 64 tokens, the second of which calls two agents at a time."""
    choose = random.Random(seed)
    return [
        {
            "id": f"made_{number}", "block_size": 64,
            "requests": _turns(choose, 1, 10, calls=number == 1),
        }
        for number in range(n_conversations)
    ]  # fmt: skip


def _turns(choose: random.Random, first_id: int, n_turns: int, calls: bool = False) -> list[dict]:
    turns: list[dict] = []
    n_blocks, at_s, next_id = 0, 0.0, first_id
    for turn in range(n_turns):
        if calls and turn == 4:
            for agent in range(2):
                inner = _turns(choose, 50_000 + 1000 * agent, 3)
                last = inner[-1]
                took_s = last["t"] + last["api"]
                turns.append({
                    "t": round(at_s + took_s, 3), "agent_id": f"agent_{agent}",
                    "duration_ms": round(1000 * took_s), "requests": inner,
                })  # fmt: skip
            at_s = max(one["t"] for one in turns[-2:])
        n_new = choose.randrange(3, 30)
        api_s = round(choose.uniform(1, 10), 2)
        think_s = round(choose.uniform(1, 20), 2) if turn else 0.0
        at_s = round(at_s + think_s, 3)
        turns.append({
            "t": at_s, "ty": "n", "in": (n_blocks + n_new) * 64 + choose.randrange(64),
            "out": choose.randrange(20, 400), "p": n_blocks, "h": [[next_id, n_new]],
            "api": api_s, "think": think_s,
        })  # fmt: skip
        next_id += n_new
        n_blocks += n_new - 1  # the last block is written again by the next turn
        at_s += api_s
    return turns


def azure(seed: int = 3, n_requests: int = 40) -> list[str]:
    choose = random.Random(seed)
    lines, at_s = ["TIMESTAMP,ContextTokens,GeneratedTokens"], 0.0
    for _ in range(n_requests):
        at_s += choose.expovariate(1.0)
        minutes, seconds = divmod(at_s, 60)
        time = f"2023-11-16 18:{int(minutes):02}:{seconds:010.7f}"
        lines.append(f"{time},{choose.randrange(20, 4000)},{choose.randrange(1, 300)}")
    return lines


if __name__ == "__main__":
    made = {
        "chats.jsonl": [json.dumps(request, separators=(",", ":")) for request in chats()],
        "agents.jsonl": [json.dumps(one, separators=(",", ":")) for one in agents()],
        "azure.csv": azure(),
    }
    for name, lines in made.items():
        (HERE / name).write_text("\n".join(lines) + "\n")
