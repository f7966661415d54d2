"""What a text leaves out is said, and an empty text begins with the token that the model names as a start."""

import json
from pathlib import Path

import pytest
import tokenizers
import torch
from architectures import lively
from driving import Tinytf
from tokenizers.processors import TemplateProcessing

from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.text.chat import ChatTemplate
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.tokenizer import Tokenizer

TURN, END, START = "<|im_end|>", "</s>", "<s>"
TEMPLATE = f"{{% for m in messages %}}{{{{ m['content'] }}}}{TURN}{{% endfor %}}"


def that_ends_texts(bpe: Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer with an end of turn and a start token, which only appends an end token."""
    library = tokenizers.Tokenizer.from_str(bpe.library.to_str())
    library.add_special_tokens([TURN, END, START])
    library.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, library.token_to_id(END))])
    return library


@pytest.fixture
def repeating(bpe: Tokenizer, tmp_path: Path) -> dict[str, Path]:
    """Models that only ever give an end of turn, or an id beyond the vocabulary of the tokenizer."""
    library = that_ends_texts(bpe)
    size = library.get_vocab_size()
    config = ModelConfig.of(
        vocab_size=size + 2, d_model=8, n_layers=1, n_heads=2, d_ff=8, context=64, tied_head=False, head_bias=True
    )
    folders = {}
    for name, token_id in ((TURN, library.token_to_id(TURN)), ("beyond", size + 1)):
        model = lively(config)
        with torch.no_grad():
            model.get_parameter("head.decoder.bias")[token_id] = 1e4
        ends = [library.token_to_id(END)]
        folders[name] = tmp_path / name.strip("<|>")
        chat = ChatTemplate({"default": TEMPLATE})
        save_run(folders[name], model, Tokenizer(library, ends, chat=chat))
    return folders


@pytest.mark.parametrize(
    "options", [(), ("--plain",), ("--beams", "2"), ("--temperature", "1", "--n", "2"), ("--watch",)]
)
def test_tokens_that_the_text_leaves_out_are_counted(
    tinytf: Tinytf, repeating: dict[str, Path], options: tuple[str, ...]
) -> None:
    count = 6 if "--n" in options else 3
    ran = tinytf("generate", "The cat", "-m", repeating[TURN], "--max-tokens", "3", *options)
    assert f"{count} tokens not shown: {TURN} × {count}" in ran.err
    assert f"texts of this model end at {END}; add --stop '{TURN}'" in ran.err
    padded = tinytf("generate", "The cat", "-m", repeating["beyond"], "--max-tokens", "3", *options)
    assert f"{count} tokens not shown: #" in padded.err
    assert "--stop" not in padded.err


def test_the_json_and_the_stream_count_them_too(tinytf: Tinytf, repeating: dict[str, Path]) -> None:
    words = ("generate", "The cat", "-m", repeating[TURN], "--max-tokens", "3")
    (counted,) = json.loads(tinytf(*words, "--json").out)["not_shown"]
    assert (counted["token"], counted["count"]) == (TURN, 3)
    last = json.loads(tinytf(*words, "--format", "ndjson").out.splitlines()[-1])
    assert last["not_shown"] == [counted]
    shown = json.loads(tinytf("generate", "The cat", "-m", "tiny", "--max-tokens", "3", "--json").out)
    assert "not_shown" not in shown


def test_a_special_token_given_to_stop_ends_the_text(tinytf: Tinytf, repeating: dict[str, Path]) -> None:
    ran = tinytf("generate", "The cat", "-m", repeating[TURN], "--max-tokens", "3", "--stop", TURN, "--json")
    data = json.loads(ran.out)
    assert (data["ended"], len(data["steps"])) == ("end token", 1)
    assert "not_shown" not in data
    assert "not shown" not in ran.err


@pytest.mark.parametrize(
    ("generation", "config", "settings", "source"),
    [
        (START, TURN, TURN, "generation_config.json"),
        (None, START, TURN, "config.json"),
        (None, None, START, "the tokenizer"),
        (None, None, None, ""),
        (-1, None, START, "the tokenizer"),
    ],
)
def test_an_empty_text_begins_with_the_start_that_the_model_names(
    bpe: Tokenizer, tmp_path: Path, generation: str | int | None, config: str | None, settings: str | None, source: str
) -> None:
    library = that_ends_texts(bpe)
    if not source:
        library = tokenizers.Tokenizer.from_str(library.to_str().replace("<|endoftext|>", "<|other|>"))
    library.save(str(tmp_path / "tokenizer.json"))
    for name, token in (("generation_config", generation), ("config", config)):
        token_id = library.token_to_id(token) if isinstance(token, str) else token
        stored = {"eos_token_id": library.token_to_id(END), **({} if token_id is None else {"bos_token_id": token_id})}
        (tmp_path / f"{name}.json").write_text(json.dumps(stored), "utf-8")
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "bos_token": settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named), "utf-8")
    tokenizer = load_tokenizer_directory(tmp_path).tokenizer
    start = tokenizer.start()
    assert start is not None
    assert [token.shown for token in start.tokens] == [START]
    why = f"{source} names it as the start of a text" if source else "it has the usual name of a start token"
    assert start.added == f"{START} added before: {why}"
    assert tokenizer.encode("The cat").tokens[-1].shown == END  # what it appends starts nothing
