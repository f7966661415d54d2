"""tinytf help words: every word of the screens in one line, from the tables that the screens use."""

import json
import re
import shlex
import subprocess
import sys

import architectures
import click
import pytest
from architectures import KINDS as KINDS_OF_MODELS
from driving import Tinytf, is_a_clean_error

from tinytf.glossary import _WORDS, KINDS, OTHER_STEP, _table, glossary, meanings_of
from tinytf.learn import TITLES
from tinytf.look.heads.kinds import LABELS
from tinytf.steps.table import STEPS, StepTable, described
from tinytf.trace.address import parse_address
from tinytf_cli.main import EVERY, cli
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.words import config_of


def test_every_step_lesson_and_kind_of_head_is_a_word_with_what_its_table_says() -> None:
    words = {word.name: word for word in glossary().words}
    keys = [(KINDS.index(word.kind), name.casefold()) for name, word in words.items()]
    assert keys == sorted(keys)
    for name in {step.name for step in STEPS} - {*TITLES, *_WORDS}:
        assert words[name].meaning in [step.title for step in STEPS if step.name == name]
    assert all(words[name].meaning == title for name, title in TITLES.items() if name not in _WORDS)
    assert all(words[f"{label.name} head"].meaning == f"a head that {label.meaning}" for label in LABELS)
    assert all(words[name].meaning == word["is"] for name, word in _WORDS.items())


ASKED = (
    "Q", "K", "V", "W_Q", "W_K", "W_V", "W_O", "mask", "softmax", "loss", "multi-head", "kv cache", "residual", "head",
    "logit", "perplexity", "temperature", "what is attention", "embedding", "layer norm", "what is feed-forward",
    "position", "gradient", "backward", "token", "vocabulary", "learning rate", "epoch", "batch", "What is a softmax?",
    "whats Q?", "entropy", "what does a residual stream do?", "GELU", "SwiGLU", "MoE", "GQA", "beam search", "top-p",
    "top-k", "warm-up", "optimiser", "Adam", "overfitting", "BPE", "logits lens", "induction head", "superposition",
    "SAE", "LoRA", "quantization", "transformer", "encoder", "decoder", "cross-attention", "context window",
    "parameter", "hidden size", "d_model", "layer", "RoPE", "LayerNorm",
)  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
def test_a_word_of_the_field_is_answered_with_formula_first_and_a_command_that_shows_it(asked: str) -> None:
    first = meanings_of(asked, config=config_of("tiny")).meanings[0]
    assert first.kind in ("word", "parameter", "head")
    assert first.more[0][0] == "formula"
    assert "{" not in first.more[0][1]
    assert first.read[0].split()[0] in EVERY or first.read[0].startswith("help ")


@pytest.mark.share(4)
@pytest.mark.parametrize("word", sorted({*_WORDS, "W_Q", "W_O", "q", "probs"}))
def test_the_commands_that_show_a_word_are_accepted_and_the_first_runs(word: str, tinytf: Tinytf) -> None:
    lines = [line for meaning in meanings_of(word, config=config_of("tiny")).meanings for line in meaning.read]
    for line in lines:
        name, *rest = shlex.split(line)
        if name != "help":
            command = cli.get_command(click.Context(cli), name)
            assert command is not None
            command.make_context(name, rest)
    ran = tinytf(*shlex.split(lines[0]))
    assert (ran.status, ran.err) == (0, "")


def test_without_a_model_the_words_of_the_field_have_formulas_too() -> None:
    assert [asked for asked in ASKED if meanings_of(asked).meanings[0].more[0][0] != "formula"] == []


def test_shapes_are_those_of_the_readers_model() -> None:
    shapes = {
        word: dict(meanings_of(word, config=config_of("preset:gpt2")).meanings[0].more)["shape"]
        for word in ("Q", "W_Q", "logit")
    }
    assert shapes == {
        "Q": "(head, token, d_head) = (12, T, 64)",
        "W_Q": "(d_model, n_heads·d_head) = (768, 768)",
        "logit": "(token, vocab) = (T, 50257)",
    }


@pytest.mark.parametrize("kind", KINDS_OF_MODELS)
def test_formulas_and_axes_of_matrices_are_those_of_the_steps_of_any_kind_of_model(kind: str) -> None:
    config = architectures.config_of(kind)
    table = StepTable(config)
    words = {(word.kind, word.name): dict(word.more) for word in _table(config)}
    for name, (step, layer) in described(config).items():
        assert words["step", name].get("formula", "").endswith(step.formula)
        assert next(row.formula for row, at in table.rows if row.name == name and at in (None, layer)) == step.formula
    for word in _table(config):
        for address in re.findall(r"(?:--at|explain) (\S+)", " ".join(word.read) * (word.kind != "parameter")):
            if not re.search("W_", address):
                parse_address(address, table)
    for kind_of_word, name in words:
        if kind_of_word == "parameter":
            meanings = meanings_of(name, config=config).meanings
            shapes = [dict(word.more)["shape"] for word in meanings if word.kind == "parameter"]
            assert [shape for shape in shapes if re.fullmatch(r"\(.+, .+\)( = \([0-9, T]+\))?", shape)]


def test_verbs_of_the_session_are_known_to_the_shell(tinytf: Tinytf) -> None:
    for name in {*VERBS} - {*EVERY}:
        page = tinytf("help", name)
        assert page.status == 0
    assert "verb of the session" in tinytf("help", "heat").out


@pytest.mark.parametrize("name", _WORDS)
def test_a_word_is_said_without_another_word_of_its_table_and_where_to_read_on_exists(name: str) -> None:
    word = _WORDS[name]
    used = set(re.findall(r"[a-z]+", word["is"])) - {name}
    assert not used & {form for other in _WORDS for form in (other, f"{other}s")}
    assert word["is"][0].islower()
    assert re.fullmatch(r".*[^.]", word["is"])
    assert word["read"]
    assert word.get("formula") or word.get("steps")


def test_words_are_listed_and_one_is_explained_at_length(tinytf: Tinytf) -> None:
    page = tinytf("help", "words", "--width", "100").out
    assert page.index("attention") < page.index("induction head") < page.index("q_rot") < page.index("altup.active")
    assert all(f"  {word.name}" in page for word in glossary(config_of("tiny")).words if word.kind != OTHER_STEP)
    assert len(page.splitlines()) < 190
    found = " ".join(tinytf("help", "logit").out.split())
    assert _WORDS["logit"]["is"] in found
    assert _WORDS["logit"]["more"] in found
    assert "tinytf learn logits" in found
    (word, _) = json.loads(tinytf("help", "softmax", "--json").out)["meanings"]
    assert word["more"]["formula"].count(" = ") == 3
    data = json.loads(tinytf("help", "norm", "--json").out)["meanings"]
    assert [(one["name"], one["kind"]) for one in data] == [("norm", "word"), ("norm", "lesson")]


def test_a_command_is_helped_as_before_and_an_unknown_word_names_the_nearest(tinytf: Tinytf) -> None:
    assert tinytf("help", "lens").out == tinytf("lens", "--help").out
    for word, hint in (
        ("logitt", "did you mean logit?"),
        ("trce", "did you mean trace?"),
        ("qwertz", "tinytf help words"),
    ):
        ran = tinytf("help", word)
        assert is_a_clean_error(ran)
        assert f"there is no command or word {word!r}" in ran.err
        assert hint in ran.err


def test_a_kind_of_head_is_found_with_and_without_its_noun() -> None:
    assert meanings_of("Induction") == meanings_of("induction head")


def test_the_words_need_no_torch() -> None:
    code = "import sys; from tinytf_cli.main import run; run(['help', 'norm']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
