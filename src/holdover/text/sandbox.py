"""Where chat templates run: jinja2's sandbox, with bounds on time and on the size of what is made.

Checked at every loop iteration, call, filter, operator and block that makes text, so that loops
without end, doubling strings and huge numbers stop. It is no complete bound: one built-in call
(`replace` of long texts, say) runs to its end unchecked, and may take the product of its
arguments' sizes in memory for that moment. Serve models you do not trust under a memory limit of
the operating system.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 16 << 20
"""Longest text or list that a template may make, and largest number it may hand on."""
MAX_CPU_S = 2.0
"""Processor time of one rendering."""
_WIDE = re.compile(r"\d{6,}|%[-#0 +]*\*|\{[^{}]*\{")  # in a format: a width, or one from outside


class Generation(Extension):
    """`{% generation %}` marks the answer for training; for a prompt it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it as a class attribute

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One for all renderings, which may run in several threads."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        self._time = threading.local()
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.filters = {name: self._bounded(f) for name, f in self.filters.items()}
        self.filters["bounded_loop"] = self._loop
        self.filters["bounded"] = self._check

    def render(self, template: Any, names: dict[str, Any]) -> str:
        """The text; raises jinja2's SecurityError where a bound is passed."""
        self._time.end_s = time.thread_time() + MAX_CPU_S
        pieces, n_chars = [], 0
        for piece in template.generate(**names):
            n_chars += len(piece)
            self._check_time()
            _check_size(n_chars)
            pieces.append(piece)
        return "".join(pieces)

    # ---- what jinja2 calls ----------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "bounded_loop")
        for block in list(tree.find_all(nodes.AssignBlock)):
            block.filter = _filtered(block.filter, "bounded")
        _wrap_concats(tree)
        return tree

    def call(self, context: Any, function: Any, /, *args: Any, **more: Any) -> Any:
        _check_numbers((*args, *more.values()))
        if getattr(function, "__name__", "") in ("format", "format_map"):
            # jinja2 has its own function around it
            _check_format(getattr(getattr(function, "__wrapped__", function), "__self__", None))
        return self._check(super().call(context, function, *args, **more))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, str | bytes | list | tuple) and isinstance(times, int):
                    _check_size(len(text) * times)
        if operator == "%":
            _check_format(left)
        _check_numbers((left, right))
        if operator == "**":
            _check_size(abs(left) ** min(abs(right), 64))
        return self._check(super().call_binop(context, operator, left, right))

    # ---- the bounds -----------------------------------------------------------------------------

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps the mark of what jinja2 has to pass first
        def run(*args: Any, **more: Any) -> Any:
            _check_numbers((*args, *more.values()))
            if function.__name__ == "do_format":
                _check_format(args[0])
            return self._check(function(*args, **more))

        return run

    def _check(self, value: Any) -> Any:
        self._check_time()
        if isinstance(value, str | bytes | list | tuple):
            _check_size(len(value))
        return value

    def _loop(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._check_time()
            yield value

    def _check_time(self) -> None:
        if time.thread_time() > self._time.end_s:
            raise SecurityError(f"it takes longer than {MAX_CPU_S:g} s")


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


def _wrap_concats(tree: nodes.Node) -> None:
    """`a ~ b` is no operator that jinja2 lets one intercept."""
    for parent in [tree, *tree.find_all(nodes.Node)]:
        for field, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _filtered(value, "bounded"))
            elif isinstance(value, list):
                value[:] = [
                    _filtered(v, "bounded") if isinstance(v, nodes.Concat) else v for v in value
                ]


def _check_size(n: int) -> None:
    if n > MAX_CHARS:
        raise SecurityError(f"it makes more than {MAX_CHARS} characters")


def _check_numbers(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_CHARS for value in values):
        raise SecurityError(f"it uses numbers above {MAX_CHARS}")


def _check_format(text: Any) -> None:
    if isinstance(text, str) and _WIDE.search(text):
        raise SecurityError("it formats to a width that is computed or of six digits or more")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)
