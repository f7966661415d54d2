"""What is learned of a conversation, for the templates of many families: the answers and their end, nothing else."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken

from tinytf.errors import TrainingError
from tinytf.text.chat import ChatTemplate, Conversation
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import train_bpe
from tinytf.training.data.answers import assistant_spans
from tinytf.training.data.chats import LEARNED, conversation_ids

FOLDER = Path(__file__).parents[1] / "text" / "chat_templates"
TEMPLATES = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.jinja")} | {
    "an end between answers alone": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if not loop.last %}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "the next role as the end": "[gMASK]{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "an end in plain letters": "{% for m in messages %}{{ m.role }}:\n{{ m.content }} (over)\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}",
    "thoughts in the prompt": "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}"
    "<think>\n\n</think>\n{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n<think>\n\n</think>\n{% endif %}",
    "the system in the last question": "{% for m in messages %}{% if m.role == 'user' %}[INST] "
    "{{ 'Be kind. ' if loop.index0 >= (messages | length) - 2 }}{{ m.content }} [/INST]{% else %} {{ m.content }}</s>"
    "{% endif %}{% endfor %}",
}
SPECIAL = re.compile(r"<[|｜][^<> ]*?[|｜]>|<(?:start|end)_of_turn>|\[/?[A-Z_]+\]")
ENDS = {
    "chatml": "<|im_end|>", "command-r": "<|END_OF_TURN_TOKEN|>", "deepseek-r1": "<｜end▁of▁sentence｜>",
    "gemma-2": "<end_of_turn>", "gemma-3": "<end_of_turn>", "granite-3": "<|end_of_text|>", "llama-2": " </s>",
    "llama-3": "<|eot_id|>", "llama-3.2": "<|eot_id|>", "phi-3": "<|end|>", "phi-4": "<|im_end|>",
    "qwen2.5": "<|im_end|>", "qwen3": "<|im_end|>", "smollm2": "<|im_end|>", "stablelm-2": "<|endoftext|>",
    "an end between answers alone": "<|end|>", "the next role as the end": "<|user|>",
    "an end in plain letters": " (over)", "thoughts in the prompt": "<|im_end|>",
}  # fmt: skip
"""What ends an answer, where it is not the tokenizer's ``</s>``."""
UNENDED = ("alpaca", "falcon")
"""Templates that write no end, so that only the last answer has one: the tokenizer's."""
SPACED = ("deepseek-v2", "falcon", "llama-2", "mistral-v3", "vicuna", "the system in the last question")
"""Templates whose answers begin with a space that the prompt does not have."""
STRIP = ("deepseek-r1", "thoughts in the prompt")
"""Templates that strip the thoughts of every answer; Qwen 3 strips those of all but the last, which it gives some."""
LONE_ENDS = {"an end between answers alone": ["<|end|>"], "the next role as the end": ["<|user|>"]}


def tokenizer_of(name: str) -> Tokenizer:
    template = TEMPLATES[name]
    made = train_bpe(["What is it? It is a cat, of course. <think> (over)"], 300)
    special = dict.fromkeys(["<s>", "</s>", *SPECIAL.findall(template), "<|user|>", "<|assistant|>", "<|end|>"])
    made.library.add_special_tokens([AddedToken(token) for token in special])
    ends = [made.library.token_to_id(token) for token in LONE_ENDS.get(name, ["</s>"])]
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(made.library, ends, chat=ChatTemplate({"default": template}, names))


def learned(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> list[str]:
    """The text of each run of tokens that are learned, from their ids alone."""
    ids = conversation_ids(tokenizer, json.dumps(messages))
    marks = np.flatnonzero(np.diff(np.concatenate([[0], (ids & LEARNED > 0).astype(int), [0]])))
    plain = (ids & np.uint32((1 << 30) - 1)).tolist()
    return [
        tokenizer.library.decode(plain[first:last], skip_special_tokens=False)
        for first, last in zip(marks[::2].tolist(), marks[1::2].tolist(), strict=True)
    ]


def talk(*answers: str) -> list[dict[str, str]]:
    return [
        message
        for number, answer in enumerate(answers)
        for message in (
            {"role": "user", "content": f"What is {number}?"},
            {"role": "assistant", "content": answer},
        )
    ]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_answers_are_learned_with_their_end_and_nothing_else(name: str) -> None:
    tokenizer, space, end = tokenizer_of(name), " " if name in SPACED else "", ENDS.get(name, "</s>")
    for answers in (["It is a cat."], ["It is a cat.", "No."], ["No.", "It\n\nis.", "A cat, of course."]):
        expected = [space + answer + (end if name not in UNENDED else "") for answer in answers]
        if name == "qwen3":
            expected[-1] = f"<think>\n\n</think>\n\n{expected[-1]}"
        if name == "gpt-oss":
            lasts = ["<|end|>"] * (len(answers) - 1) + ["<|return|>"]
            expected = [f"<|channel|>final<|message|>{one}{last}" for one, last in zip(answers, lasts, strict=True)]
        if name in UNENDED:
            expected[-1] += "</s>"
        assert learned(tokenizer, talk(*answers)) == expected


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_thoughts_are_learned_where_the_template_writes_them(name: str) -> None:
    tokenizer, thought = tokenizer_of(name), "<think>\na cat?\n</think>\n\n"
    found = learned(tokenizer, talk(f"{thought}It is.", f"{thought}No."))
    assert len(found) == 2
    strips = [name in STRIP or name == "qwen3", name in STRIP]
    for part, answer, is_stripped in zip(found, ("It is.", "No."), strips, strict=True):
        before, _, after = part.partition(answer)
        assert thought.strip() not in before if is_stripped else before.endswith(thought)
        assert not any(token in before for token in ("<|user|>", "[/INST]", "</s>"))
        assert after == learned(tokenizer, talk("It is.", "No."))[found.index(part)].partition(answer)[2]


def test_a_call_and_what_follows_its_result_are_learned_and_the_result_is_not() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    result = {"role": "tool", "content": "3"}
    asked, said = {"role": "user", "content": "Add."}, {"role": "assistant", "content": "", "tool_calls": [call]}
    messages = [asked, said, result, {"role": "assistant", "content": "It is 3."}]
    found = learned(tokenizer_of("qwen2.5"), messages)
    assert found == [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>', "It is 3.<|im_end|>"
    ]  # fmt: skip


def test_a_template_that_rewrites_answers_is_refused_with_the_reason() -> None:
    tokenizer = tokenizer_of("chatml")
    shouting = "{% for m in messages %}{{ m.role }}: {{ m.content | upper | replace('.', '!') | reverse }}{% endfor %}"
    changed = Tokenizer(tokenizer.library, chat=ChatTemplate({"default": shouting}))
    with pytest.raises(TrainingError, match="does not write the assistant's answers unchanged"):
        assistant_spans(changed, Conversation(talk("It is.", "No.")))
