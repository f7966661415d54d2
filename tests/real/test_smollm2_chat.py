"""SmolLM2 answers a question that is put into its chat template, and ends a bare one at once."""

from pathlib import Path

import pytest

from tinytf.loading import Model
from tinytf.text.chat import Conversation

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France?"


def test_a_conversation_is_answered_and_a_bare_question_is_not(model: Model) -> None:
    assert "Paris" in model.generate(Conversation.of(QUESTION), max_tokens=12)
    assert model.generate(QUESTION, max_tokens=12) == ""


def test_a_conversation_has_the_tokens_of_transformers(model: Model, path: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    turns = [
        {"role": "system", "content": "Answer in one word."}, {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "Und von Österreich? 🐈"},
    ]  # fmt: skip
    for messages in (turns[1:2], turns, turns[:3]):
        asked = Conversation(messages)
        theirs = reference.apply_chat_template(messages, add_generation_prompt=asked.is_open, return_dict=False)
        assert model.encode(asked).ids == theirs
