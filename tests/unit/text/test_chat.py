"""Chat templates: the real one against transformers' renderer, refusals, and the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from holdover.errors import ModelFileError, RequestError
from holdover.text import ChatTemplate, Tokenizer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>there</b> & 'you' 😀"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye\n"},
]
# In the style of published templates: macros, loop controls, json, dates, generation blocks.
FANCY = """{%- macro part(m) %}[{{ m['role'] }}] {{ m['content'] | trim }}{% endmacro %}
{{- bos_token }}
{%- if tools %}
TOOLS {{ tools | tojson(indent=2) }}
{% endif %}
{%- for message in messages %}
    {%- if message['role'] == 'skip' %}{% continue %}{% endif %}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{ part(message) }}{% endgeneration %}
    {%- else %}{{ part(message) }}{% endif %}
{% endfor %}
{%- if add_generation_prompt %}{{ '<model>' }}{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"a": [1, None]}}}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(Path("m.gguf"), source, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("talk", [TALK, TALK[1:], TALK[1:2], TALK[1:3]])
@pytest.mark.parametrize("prompt", [True, False])
def test_smollm2_template_renders_as_transformers_does(
    smollm2: Tokenizer, talk: list[dict[str, str]], prompt: bool
) -> None:
    assert smollm2.chat_template is not None
    theirs, _ = render_jinja_template(
        [talk], chat_template=smollm2.chat_template.source, add_generation_prompt=prompt
    )
    text = smollm2.render_chat(talk, add_generation_prompt=prompt)
    assert text == theirs[0]
    ids = smollm2.encode_chat(talk, add_generation_prompt=prompt)
    assert ids == smollm2.encode(text, add_special_tokens=False)
    assert ids[0] == smollm2.bos_token_id


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_fancy_template_renders_as_transformers_does(tools: list[dict] | None) -> None:
    talk = [*TALK, {"role": "skip", "content": "x"}]
    theirs, _ = render_jinja_template(
        [talk], tools=tools, chat_template=FANCY, add_generation_prompt=True, bos_token="<s>"
    )
    assert template(FANCY).render(talk, tools) == theirs[0]


def test_text_parts_become_one_text(smollm2: Tokenizer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\nab<|im_end|>" in smollm2.render_chat([{"role": "user", "content": parts}])
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(RequestError, match="only parts of type 'text'") as caught:
        smollm2.render_chat([{"role": "user", "content": image}])
    assert caught.value.field == "messages[0].content"


def test_a_model_without_template(gemma3: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"no chat template.*completions") as caught:
        gemma3.encode_chat(TALK)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0]['nothing']['there'] }}",
        "{{ 1 + messages[0]['content'] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_what_a_template_refuses_is_an_error_on_messages(source: str) -> None:
    with pytest.raises(RequestError, match="chat template rejects") as caught:
        template(source).render(TALK)
    assert caught.value.field == "messages"


def test_the_templates_own_words_reach_the_person() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(TALK)


def test_a_broken_template_is_the_files_fault() -> None:
    with pytest.raises(ModelFileError, match=r"m\.gguf: .*cannot be compiled"):
        template("{% for %}").render(TALK)


def test_tools_for_a_template_without_them(smollm2: Tokenizer) -> None:
    with pytest.raises(RequestError, match="does not take tools") as caught:
        smollm2.render_chat(TALK, tools=TOOLS)
    assert caught.value.field == "tools"
