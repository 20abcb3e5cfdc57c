"""A chat template cannot burn the machine, and ordinary ones notice nothing of the bounds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdover.errors import RequestError
from holdover.text import ChatTemplate
from holdover.text.sandbox import BoundedEnvironment

TALK = [{"role": "user", "content": "Hi"}]
NESTED = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3


@pytest.mark.parametrize(
    "source",
    [
        NESTED,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(60) }}",
        "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% set n = namespace(x='ab') %}"
        "{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}"
        "{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for a in range(60) %}"
        "{% set x %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}"
        "{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ [0] * 999999999 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x'.ljust(10 * 1000 * 1000 * 1000) }}",
        "{{ 'x' | center(width=99999999) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, '999999999') }}",
        "{{ '%*d' % (99999999, 1) }}",
        "{{ range(1000000000) }}",
    ],
)
def test_it_is_stopped(source: str) -> None:
    start_s = time.thread_time()
    with pytest.raises(RequestError, match="chat template rejects") as caught:
        ChatTemplate(Path("m"), source, {}).render(TALK)
    assert time.thread_time() - start_s < 6
    assert caught.value.field == "messages"


def test_a_long_conversation_is_no_attack() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim ~ '\n' }}{% endfor %}"
    talk = [{"role": "user", "content": f" message {i} "} for i in range(20_000)]
    text = ChatTemplate(Path("m"), source, {}).render(talk)
    assert text.startswith("<user>message 0\n<user>message 1\n")
    assert text.endswith("<user>message 19999\n")


def test_loops_keep_what_they_know() -> None:
    source = (
        "{% for m in messages if m != 3 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
        "{{ loop.previtem }}{% else %}none{% endfor %}"
        "{% for k, v in {'a': 1}.items() recursive %}{{ k }}{{ v }}{% endfor %}"
    )
    template = BoundedEnvironment().from_string(source)
    text = template.environment.render(template, {"messages": [3, 4, 5]})
    assert text == "1/2False2/2True4a1"
