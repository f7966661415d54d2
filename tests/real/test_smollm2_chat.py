"""SmolLM2 answers a question that is put into its chat template, and ends a bare one at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tinytf.loading import Model
from tinytf.text.chat import Conversation
from tinytf.text.corpus import find_files
from tinytf.training.data.chats import ChatTurns
from tinytf.training.data.examples import IGNORED
from tinytf.training.data.setup import prepare
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.losses import batch_loss

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


@pytest.mark.exhaustive
def test_the_loss_of_what_the_assistant_says_is_that_of_transformers(
    model: Model, theirs: Any, path: Path, tmp_path: Path
) -> None:
    chats = tmp_path / "chats.jsonl"
    talks = [[{"role": "user", "content": QUESTION}, {"role": "assistant", "content": f"{city}."}]
             for city in ("Paris", "It is Paris, of course", "Lyon")]  # fmt: skip
    chats.write_text("\n".join(json.dumps({"messages": talk}) for talk in talks), "utf-8")
    recipe = Recipe(objective="chat", block=64, batch=3, begun_from=str(path))
    setup = prepare(find_files([chats], recipe.reading), recipe, tmp_path, model.tokenizer, model.transformer)
    drawn = ChatTurns(setup.examples.train.stream, setup.examples.held_out_set.stream, recipe).batch(
        0
    )  # a row for each
    last = torch.full((3, 1), IGNORED)
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.cat([drawn.ids, torch.zeros_like(last)], 1), labels=torch.cat([last, drawn.targets], 1)
        ).loss
        for batch in (drawn, setup.examples.batch(0)):
            assert float(batch_loss(model.transformer, batch)) == pytest.approx(float(expected), rel=1e-5)
