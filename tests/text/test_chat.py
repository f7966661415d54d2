"""Chat templates: the text of transformers byte for byte, where messages stand in it, and templates that misbehave."""

import json

import pytest
from directories import LAYOUTS, write

from tinytf.errors import CheckpointError, UsageError
from tinytf.text.chat import ChatTemplate, Conversation
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.template import render_template

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


@pytest.mark.share(12)
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "seconds"),
        ("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "characters"),
        ("{{ 'x' * 999999999 }}", "memory"),
        ("{{ 'x'|center(999999999) }}", "memory"),
        ("{{ '%999999999d' % 1 }}", "memory"),
        ("{{ ('x' * 99999).replace('', 'x' * 99999) }}", "memory"),
        ("{{ 9 ** (9 ** 9) }}", "seconds"),
        ("{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}", "calls itself"),
        ("{% set n = namespace(x='xxxx') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "memory"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_template_without_an_end_is_stopped(template, said, monkeypatch):
    monkeypatch.setattr("tinytf.text.worker.SECONDS", 1 if said == "seconds" else 60)
    monkeypatch.setattr("tinytf.text.worker.GROWTH", 2**26)
    with pytest.raises(CheckpointError, match=said):
        render_template(template, {})


CONFIG, JINJA = {"chat_template": CHATML}, {"chat_template__jinja": CHATML}
NAMED = {"chat_template": [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "T" + CHATML}]}
ASKED = [_says("system", "The dog <s> saw"), _says("user", "the  cat. 猫"), _says("assistant", "ran")]


@pytest.mark.parametrize("place", ["settings", "list", "file", "folder"])
@pytest.mark.parametrize("layout", ["llama", "gpt2_json", "qwen2", "gemma"])
def test_a_conversation_has_the_tokens_of_transformers(layout, place, tmp_path):
    LAYOUTS[layout](tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if place in ("settings", "list"):
        write(tmp_path, tokenizer_config={**settings, **(CONFIG if place == "settings" else NAMED)})
    else:
        write(tmp_path, tokenizer_config={**settings, "chat_template": "an older one"}, **JINJA)
    if place == "folder":
        (tmp_path / "additional_chat_templates").mkdir()
        write(tmp_path / "additional_chat_templates", tool_use__jinja="T" + CHATML)
    from transformers import AutoTokenizer

    reference, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer_directory(tmp_path).tokenizer
    for messages in (ASKED, ASKED[:2]):
        for tools in (None, []):
            found = ours.converse(Conversation(messages, tools))
            theirs = reference.apply_chat_template(
                messages, tools, add_generation_prompt=len(messages) == 2, return_dict=False
            )
            assert found.ids == theirs
            assert found.text.startswith("T") == (tools == [] and place in ("list", "folder"))


def test_the_roles_of_tokens_are_those_of_the_messages_that_they_are_in(tmp_path):
    LAYOUTS["gpt2_json"](tmp_path)
    write(tmp_path, **JINJA)
    found = load_tokenizer_directory(tmp_path).tokenizer.converse(Conversation(ASKED))
    heard = dict.fromkeys(found.roles, "")
    for token, role in zip(found.tokens, found.roles, strict=True):
        heard[role] += token.data.decode("utf-8", "replace") if role else ""
    assert {role: text.strip() for role, text in heard.items() if role != "user"} == {
        None: "", "system": "The dog <s> saw", "assistant": "ran"
    }  # fmt: skip
    assert heard["user"].startswith("the  cat. ")


def test_a_text_that_spells_out_the_start_token_is_told_of(tmp_path):
    LAYOUTS["llama"](tmp_path)
    tokenizer = load_tokenizer_directory(tmp_path).tokenizer
    twice, once = tokenizer.encode("<s>the cat"), tokenizer.encode("the cat <s>")
    assert not tokenizer.encode("").starts_twice
    assert twice.ids[0] == twice.ids[1] != once.ids[1]
    assert (twice.starts_twice, once.starts_twice) == (True, False)
    assert twice.added == "<s> added before; the text has a start token of its own"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("[]", "one or more messages"),
        ("{}", "one or more messages"),
        ('{"messages": 3}', "one or more messages"),
        ("[3]", "message 1 is not an object"),
        ('[{"role": "user", "content": "a"}, {"role": 7}]', "message 2 is not an object"),
        ('[{"role": "user"', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"messages": [{"role": "user"}], "tools": "hammer"}', "tools are not a list"),
    ],
)
def test_what_is_no_conversation_is_refused(said, wrong):
    with pytest.raises(UsageError, match=wrong):
        Conversation.from_json(said)


@pytest.mark.parametrize("said", [3, ["a"], [{"name": "default"}]])
def test_what_is_no_template_is_refused_by_the_name_of_its_file(said, tmp_path):
    LAYOUTS["gpt2_json"](tmp_path)
    write(tmp_path, tokenizer_config={"chat_template": said})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template is neither"):
        load_tokenizer_directory(tmp_path)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "damaged in line 1"),
        ("\n{{ messages", "damaged in line 2"),
        ("{{ messages[0]['content'] + 3 }}", "fails: can only concatenate"),
        ("{{ bos_token + 'x' }}", "fails: 'bos_token' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "fails: access to attribute '__class__'"),
        ("{{ messages.append(3) }}", "fails: access to attribute 'append'"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "fails: access to attribute"),
        ("(" * 10 + "{{" + "(" * 5_000 + "1" + ")" * 5_000 + "}}", "calls itself"),
    ],
)
def test_a_template_that_fails_is_one_line(template, said):
    with pytest.raises(CheckpointError, match=said):
        ChatTemplate({"default": template}).render(Conversation.of("hello"))


def test_a_changed_last_message_cannot_be_continued():
    shouts = ChatTemplate({"default": "{% for m in messages %}{{ m.content.upper()[:3] }}{% endfor %}"})
    assert shouts.render(Conversation(ASKED))[1] == ()
    with pytest.raises(UsageError, match="cannot be continued"):
        shouts.render(Conversation(ASKED), continued=True)
