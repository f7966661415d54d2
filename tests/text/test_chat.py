"""Chat templates: the text of transformers byte for byte, where messages stand in it, and templates that misbehave."""

import pytest

from tinytf.errors import CheckpointError
from tinytf.text.chat import ChatTemplate, Conversation
from tinytf.text.template import rendered

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']}}{{'<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_each_message_is_found_where_the_template_puts_it():
    asked = Conversation([_says("user", " user "), _says("assistant", "user"), _says("user", "")])
    text, said = ChatTemplate({"default": CHATML}).render(asked)
    assert [(one.role, text[one.start : one.end]) for one in said] == [("user", "user"), ("assistant", "user")]
    assert text[: said[0].start] == "<|im_start|>user\n "
    assert text.endswith("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "seconds"),
        ("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "characters"),
        ("{{ 'x' * 999999999 }}", "more than fits"),
        ("{{ 'x'.ljust(999999999) }}", "more than fits"),
        ("{{ 9 ** 9 ** 9 ** 9 }}", "more than fits"),
        ("{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}", "calls itself"),
        ("{% set n = namespace(x='xxxx') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "memory"),
    ],
)  # fmt: skip
def test_a_template_without_an_end_is_stopped(template, said, monkeypatch):
    monkeypatch.setattr("tinytf.text.template.SECONDS", 0.3 if said == "seconds" else 60)
    monkeypatch.setattr("tinytf.text.template.GROWTH", 2**26)
    with pytest.raises(CheckpointError, match=said):
        rendered(template, {})
