"""The chat templates of well-known models, written down from their formats: what transformers makes of them."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jinja2
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models

from tinytf.certification.conversations import MESSAGES as CONVERSATIONS
from tinytf.certification.conversations import WEATHER
from tinytf.errors import TinytfError, UsageError
from tinytf.text.chat import ChatTemplate, Conversation

TEMPLATES = {path.stem: path.read_text("utf-8") for path in (Path(__file__).parent / "chat_templates").glob("*.jinja")}
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.fixture(scope="module")
def reference():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast
    return PreTrainedTokenizerFast(tokenizer_object=Library(models.BPE()), **NAMES)


def test_there_are_twenty_and_more():
    assert len(TEMPLATES) >= 20


def outcome(render: Callable[[], str]) -> str | Exception:
    """The text, or the error that is raised in its place."""
    try:
        return render()
    except (jinja2.TemplateError, TypeError, ValueError, TinytfError) as error:
        return error


@pytest.mark.parametrize("tools", [None, [WEATHER]], ids=["", "tools"])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_conversation_is_the_text_of_transformers_or_is_refused_by_both(name, tools, reference):
    ours, made = ChatTemplate({"default": TEMPLATES[name]}, NAMES), 0
    theirs = partial(reference.apply_chat_template, tools=tools, chat_template=TEMPLATES[name], tokenize=False)
    for about, messages in CONVERSATIONS.items():
        asked = Conversation(messages, tools)
        expected = outcome(partial(theirs, messages, add_generation_prompt=asked.is_open))
        found = outcome(lambda asked=asked: ours.render(asked)[0])
        if isinstance(expected, str):
            assert found == expected, about
            made += 1
        else:
            assert isinstance(found, TinytfError), about
            assert str(expected) in found.message, about
            assert isinstance(found, UsageError) == (type(expected) is jinja2.TemplateError), about
    assert made >= 5


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_what_a_message_says_is_what_stands_where_it_is_found(name):
    ours = ChatTemplate({"default": TEMPLATES[name]}, NAMES)
    for messages in CONVERSATIONS.values():
        made = outcome(lambda messages=messages: ours.render(Conversation(messages)))
        for one in made[1] if isinstance(made, tuple) else ():
            text, content = made[0][one.start : one.end], messages[one.number]["content"]
            assert text in (content.strip(), json.dumps(content)[1:-1])
            assert one.role == messages[one.number]["role"]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_assistants_last_message_is_continued_as_transformers_continues_it(name, reference):
    ours, messages = ChatTemplate({"default": TEMPLATES[name]}, NAMES), CONVERSATIONS["an answer to continue"]
    expected = reference.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    assert ours.render(Conversation(messages), continued=True)[0] == expected


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_message_of_a_usual_conversation_is_found(name):
    usual = Conversation(CONVERSATIONS["several turns"][1:])
    _, said = ChatTemplate({"default": TEMPLATES[name]}, NAMES).render(usual)
    assert [one.role for one in said] == ["user", "assistant", "user"]
