"""A sizing plan for people. Every number comes from `report`'s JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdover.plan.measured import quality_line
from holdover.plan.sizing.offload import NAMES
from holdover.plan.sizing.text import table
from holdover.units import format_bytes as size

Report = dict[str, Any]


def plan_text(report: Report) -> str:
    """The whole answer as plain text."""
    blocks = [
        _heading(report),
        list(_formulas(report)),
        _contexts(report),
        list(_together(report)),
        list(_device(report)),
        list(_engine(report)),
        list(_lengths(report)),
        list(_goal(report)),
        list(_assumptions(report)),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _heading(report: Report) -> list[str]:
    limit = report["model_context_tokens"]
    own = (
        "a context that the file does not limit"
        if limit is None
        else f"{limit:,} tokens of context"
    )
    lines = [
        f"{report['model']}  {report['architecture']}, {report['layers']} layers, {own}",
        f"  weights  {_weights(report)}",
        f"  cache    {_per_token(report)}, KV {report['kv']}",
    ]
    if report["quality"] is not None:
        lines.append(f"  quality  {quality_line(report['quality'])}")
    return lines


def _weights(report: Report) -> str:
    if report["weights"] is None:
        return "not known: give --weights 16GB or --assume parameters=8.03e9"
    weights, n_bytes = report["weights"], report["weights_bytes"]
    text = f"{size(n_bytes)} ({n_bytes:,} bytes)"
    if weights["parameters"] is not None:
        text += f", {weights['parameters']:,} parameters"
    return f"{text}, {weights['dtype']}: {weights['source']}"


def _per_token(report: Report) -> str:
    growing, first, fixed = (
        report[key] for key in ("bytes_per_token", "first_bytes_per_token", "fixed_bytes")
    )
    text = f"{_count(growing)} bytes per token"
    if first != growing:
        text += f" ({_count(first)} until windows are full)"
    return f"{text}, {fixed:,} fixed" if fixed else text


def _formulas(report: Report) -> Iterator[str]:
    for part in report["conversation"]["by_label"]:
        limit = f", {part['limit']}" if part["limit"] else ""
        yield f"{part['label']}: {part['formula']}{limit}"


def _contexts(report: Report) -> list[str]:
    with_users = "max_users" in report
    columns = [">tokens", ">one conversation", ">logical bytes", ">held bytes", ">reserved bytes"]
    kinds = _kinds(report)
    columns += [f">{kind}" for kind in kinds]
    if with_users:
        columns.append(">users that fit")
    rows = []
    for row in report["contexts"]:
        cells = [
            f"{row['tokens']:,}" + ("*" if row["beyond_model_context"] else ""),
            size(row["held_bytes"]),
            *(f"{row[key]:,}" for key in ("logical_bytes", "held_bytes", "reserved_bytes")),
            *(size(row["by_kind"][kind]) for kind in kinds),
        ]
        rows.append([*cells, f"{row['max_users']:,}"] if with_users else cells)
    lines = table(columns, rows)
    lines.append(
        "logical: by the formula; held: whole blocks while decoding; "
        "reserved: blocks of the widest step"
    )
    if any(row["beyond_model_context"] for row in report["contexts"]):
        lines.append(f"* beyond the model's own {report['model_context_tokens']:,} tokens")
    return lines


def _kinds(report: Report) -> list[str]:
    """Kinds in use, where there is more than one."""
    used = {k for row in report["contexts"] for k, n_bytes in row["by_kind"].items() if n_bytes}
    kinds = [kind for kind in report["conversation"]["by_kind"] if kind in used]
    return kinds if len(kinds) > 1 else []


def _together(report: Report) -> Iterator[str]:
    """What several conversations hold together; on a device its own table says so."""
    users, shared, held = (report[k] for k in ("users", "shared_prefix_tokens", "users_bytes"))
    if "device" in report or users == 1:
        return
    tokens = f"{_users(users)} x {report['conversation']['tokens']:,} tokens"
    if shared:
        tokens += f", the first {shared:,} of them shared"
    text = f"{tokens}: {size(held)} ({held:,} bytes) held"
    if report["weights_bytes"] is not None:
        text += f"; with the weights {size(held + report['weights_bytes'])}"
    yield f"{text}. Whether they fit: --gpu or --memory"


def _device(report: Report) -> Iterator[str]:
    if "device" not in report:
        return
    device = report["device"]
    tokens = report["conversation"]["tokens"]
    users = report.get("offload", {}).get("users_on_device", report["users"])
    many = device["count"] > 1
    each = " on each device" if many else ""
    yield f"{device['count']} x {device['name']}" if many else f"on {device['name']}"
    rows = [
        ("memory" + each, device["memory_bytes"], ""),
        ("- weights", device["weights_bytes"], "split over the devices" if many else ""),
        ("- headroom", device["headroom_bytes"], "activations, kernels, driver: --headroom"),
        ("= room for the cache", device["cache_room_bytes"], ""),
        (f"- {_users(users)} x {tokens:,} tokens", device["cache_bytes"], _held(report)),
        ("= margin", device["margin_bytes"], ""),
    ]
    yield from table(
        ("", ">size", ">bytes", ""),
        [(f"  {name}", size(n_bytes), f"{n_bytes:,}", note) for name, n_bytes, note in rows],
    )
    yield from _copies(report)
    yield _verdict(report)
    yield from _offload(report)
    yield f"  users of {tokens:,} tokens: up to {report['max_users']:,}"
    yield f"  tokens for {_users(report['users'])}: {_longest(report)}"
    yield from _ceiling(report)


def _held(report: Report) -> str:
    shared = report["shared_prefix_tokens"]
    return f"held, {shared:,} tokens of them shared" if shared else "held"


def _verdict(report: Report) -> str:
    device, margin = report["device"], report["device"]["margin_bytes"]
    waiting = report.get("offload", {}).get("margin_bytes", 0)
    each = "each " if device["count"] > 1 else ""
    answer = "yes" if report["fits"] else "no"
    over = f"{size(margin)} to spare" if margin >= 0 else f"{size(-margin)} too much"
    if margin >= 0 and waiting < 0:
        over = f"{size(-waiting)} too much for those that wait"
    return (
        f"  fits: {answer}, {size(device['needed_bytes'])} of weights and cache on {each}"
        f"{size(device['memory_bytes'])} less headroom; {over}"
    )


def _copies(report: Report) -> Iterator[str]:
    """What tensor parallelism does not split."""
    count = report["device"]["count"]
    for part in report["device"]["stored"]:
        if count > 1 and part["copies"] > 1:
            heads, each = part["heads"], part["heads_per_device"]
            why = (
                f"{_heads(heads)} over {count} devices, {each} on each"
                if each < heads or heads > 1
                else f"whole on every one of {count} devices"
            )
            yield f"  {part['label']}: {why}: stored {part['copies']:g} times in all"


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def _offload(report: Report) -> Iterator[str]:
    offload = report.get("offload")
    if offload is None:
        return
    place = NAMES[offload["to"]]
    yield (
        f"  on the device at a time: {_users(offload['users_on_device'])}; waiting: "
        f"{_users(offload['users_waiting'])}, {size(offload['waiting_bytes'])} of "
        f"{size(offload['room_bytes'])} of {place}; back in {offload['resume_ms_at_least']:,} ms "
        f"or more (link assumed at {offload['link_bytes_per_s_assumed'] / 1e9:.0f} GB/s)"
    )


def _longest(report: Report) -> str:
    longest, limit = report["max_context"], report["model_context_tokens"]
    if longest is None:
        return "memory sets no limit"
    over = limit is not None and longest > limit
    return f"up to {longest:,}" + (f" (the model's own limit is {limit:,})" if over else "")


def _ceiling(report: Report) -> Iterator[str]:
    ceiling = report.get("decode_ceiling")
    if ceiling is None:
        return
    total, each = (ceiling[f"tokens_per_s{per}_at_most"] for per in ("", "_per_user"))
    reads = f"{size(ceiling['weights_read_bytes'])} + {size(ceiling['cache_read_bytes'])}"
    yield (
        f"  decode ceiling of {_users(ceiling['users'])}: {total:,} tokens/s, {each:,} each; an "
        f"upper bound: a step reads {reads} (weights + cache)"
    )


def _engine(report: Report) -> Iterator[str]:
    engine = report.get("engine")
    if engine is None:
        return
    n_bytes, each = engine["reserved_bytes"], ""
    if engine["devices"] > 1:
        each = f" on each of {engine['devices']} devices"
    yield (
        f"{engine['name']} reserves {size(n_bytes)} ({n_bytes:,} bytes){each} for "
        f"{_users(report['users'])} of {report['conversation']['tokens']:,} tokens; by the formula "
        f"it is {size(engine['logical_bytes'])}"
    )
    rows = [
        ("  " + b["what"], f"{b['cells']:,}", str(b["layers"]), size(b["buffer_bytes"]),
         f"{b['buffer_bytes']:,}")
        for b in engine["buffers"]
    ]  # fmt: skip
    yield from table(("  buffer", ">cells", ">layers", ">size", ">bytes"), rows)
    if engine["bytes_per_token"] is not None:
        yield f"  one more token: {engine['bytes_per_token']:,} bytes"
    if engine["pool_tokens"] is not None:
        yield f"  room on the device: {engine['pool_tokens']:,} tokens as it counts them"
    yield from (f"  {note}" for note in engine["notes"])
    yield f"  flags: {' '.join(engine['flags'])}"


def _lengths(report: Report) -> Iterator[str]:
    lengths = report.get("lengths")
    if lengths is None:
        return
    yield f"lengths: {lengths['distribution']}"
    yield (
        f"  mean {lengths['mean_tokens']:,} tokens, 95 % below {lengths['p95_tokens']:,}; "
        f"a conversation holds {size(lengths['mean_bytes'])} on average"
    )
    if "max_users" in lengths:
        yield (
            f"  users that fit with {lengths['probability']:.0%} probability: "
            f"{lengths['max_users']:,} (all of the mean length: {lengths['max_users_of_mean']:,})"
        )
    yield f"  method: {lengths['method']}"


def _goal(report: Report) -> Iterator[str]:
    goal = report.get("goal")
    if goal is None:
        return
    asked = f"goal: {_users(goal['users'])} of {goal['context_tokens']:,} tokens"
    if goal["fits"]:
        yield f"{asked}: fits as it is, with {size(goal['margin_bytes'])} to spare"
        return
    yield f"{asked}: does not fit, {size(-goal['margin_bytes'])} too much"
    if goal["changes"]:
        yield "  single changes that make it fit, the cheapest first; their flags go after"
        yield f"  {goal['command']}"
        for change in goal["changes"]:
            yield from _change(change)
    else:
        yield "  no single change makes it fit"
    if goal["combination"]:
        yield f"  the cheapest combination of two or more, {goal['combination_points']} points"
        for change in goal["combination"]:
            yield from _change(change)
        yield f"    leaves {size(goal['combination'][-1]['margin_bytes'])}"
        yield f"    {goal['combination_command']}"
    elif len(goal["changes"]) == 0:
        yield "  no combination makes it fit either"


def _change(change: Report) -> Iterator[str]:
    yield f"    {change['name']}: {change['what']}  [{change['flag']}]"
    yield f"        costs {change['pays']}, {change['points']} points: {change['cost']}"


def _assumptions(report: Report) -> Iterator[str]:
    if report["assumptions"]:
        yield "assumed, since the file does not say it"
        rows = [("  " + a["field"], a["value"], a["source"]) for a in report["assumptions"]]
        yield from table(("  field", "value", "from"), rows)


def _users(users: int) -> str:
    return "1 user" if users == 1 else f"{users:,} users"


def _count(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
