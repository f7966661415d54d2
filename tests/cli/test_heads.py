"""tinytf heads: what it draws, its data, its files, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from driving import SENTENCE, Tinytf, digits, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.loading import Model, load
from tinytf.look.heads.census import SCORES
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.draw import blocks_of

QUICK = ("heads", "--length", "6", "--count", "3")


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path, corpus: Path) -> None:
    data = json.loads(tinytf(*QUICK, corpus, "-m", decoder, "--seed", "4", "--json").out)
    found = load(str(decoder)).heads(corpus, length=6, count=3, seed=4)
    assert data["kind"] == "heads"
    assert (data["repeats"]["length"], data["repeats"]["seed"]) == (6, 4)
    assert data["repeats"]["first_loss"] == digits(found.first_loss)
    assert data["text"] == {"corpus": str(corpus), "sequences": 3, "tokens": found.text.tokens, "unread": True}
    assert len(data["heads"]) == 4
    for head in data["heads"]:
        layer, number = head["layer"], head["head"]
        assert head["repeats"] == digits(found.repeats.of(layer, number))
        assert head["text"] == digits(found.text.of(layer, number))
        assert head["evidence"] == found.labels[layer][number].evidence
    assert set(data["heads"][0]["repeats"]) == set(SCORES)
    assert data["labels"][0]["least"] == 0.5


@pytest.mark.parametrize("by", ["induction", "first", "offset", "entropy-share", "distance"])
def test_heads_are_sorted_by_the_score_that_was_asked_for(tinytf: Tinytf, decoder: Path, by: str) -> None:
    data = json.loads(tinytf(*QUICK, "-m", decoder, "--by", by, "--json").out)
    score = {"offset": "offset_weight"}.get(by, by.replace("-", "_"))
    values = [head["repeats"][score] for head in data["heads"]]
    assert values == sorted(values, reverse=True)
    shown = re.findall(r"^  (L\dH\d) ", tinytf(*QUICK, "-m", decoder, "--by", by).out, re.MULTILINE)
    assert shown == [f"L{head['layer']}H{head['head']}" for head in data["heads"]]


def test_top_cuts_table_and_data_alike(tinytf: Tinytf, decoder: Path) -> None:
    arguments = (*QUICK, "-m", decoder, "--top", "3")
    assert len(json.loads(tinytf(*arguments, "--json").out)["heads"]) == 3
    shown = tinytf(*arguments).out
    assert "the first 3 of 4 heads" in shown
    assert len(re.findall(r"^  L\dH\d ", shown, re.MULTILINE)) == 3


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path) -> None:
    arguments = (*QUICK, "-m", decoder)
    data = json.loads(tinytf(*arguments, "--json").out)
    first, *heads = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert first == {"type": "heads", **{key: data[key] for key in data if key not in ("kind", "heads")}}
    assert heads == [{"type": "head", **head} for head in data["heads"]]


def test_every_score_goes_into_a_file_of_tensors(tinytf: Tinytf, decoder: Path, corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads.safetensors"
    assert tinytf(*QUICK, corpus, "-m", decoder, "-o", path).status == 0
    tensors = load_file(path)
    assert set(tensors) == {f"repeats.{name}" for name in SCORES} | {
        f"text.{name}" for name in SCORES if name not in ("duplicate", "induction")
    }
    assert all(tensor.shape == (2, 2) for tensor in tensors.values())


def test_without_a_text_it_says_that_there_was_none(tinytf: Tinytf, decoder: Path, corpus: Path) -> None:
    assert "no text: every score is from the random tokens" in tinytf(*QUICK, "-m", decoder).out
    assert json.loads(tinytf(*QUICK, "-m", decoder, "--json").out)["text"] is None
    assert "no text" not in tinytf(*QUICK, corpus, "-m", decoder).out


def test_a_model_with_a_text_of_its_own_is_read_on_it_unless_told_otherwise(tinytf: Tinytf) -> None:
    own = json.loads(tinytf(*QUICK, "--json").out)
    assert own["text"] == {"corpus": "tiny's held_out.txt", "sequences": 3, "tokens": 12, "unread": True}
    assert json.loads(tinytf(*QUICK, "--random", "--json").out)["text"] is None


def test_an_encoder_has_scores_and_says_why_it_has_no_loss(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf(*QUICK, "-m", encoder)
    assert ran.status == 0
    assert "predicts no next token" in ran.out
    assert "by previous, the highest first" in ran.out


def test_text_comes_from_a_pipe_too(tinytf: Tinytf, decoder: Path, corpus: Path) -> None:
    piped = json.loads(tinytf(*QUICK, "-", "-m", decoder, "--json", stdin=corpus.read_bytes()).out)
    named = json.loads(tinytf(*QUICK, corpus, "-m", decoder, "--json").out)
    assert piped["heads"] == named["heads"]
    assert piped["text"]["corpus"] == "standard input"


def test_in_sentences_nothing_is_drawn_and_colour_changes_no_word(tinytf: Tinytf, decoder: Path) -> None:
    arguments = (*QUICK, "-m", decoder)
    said = tinytf(*arguments, "--plain").out
    assert not re.search("[░▒▓█▁▂▃▏▎▍▌]", said)
    assert "Layer 0: " in said
    numbers = [re.findall(r"\d\.\d\d", line) for line in tinytf(*arguments).lines]
    coloured = [re.findall(r"\d\.\d\d", without_colour(line)) for line in tinytf(*arguments, "--color", "always").lines]
    assert coloured == numbers
    assert tinytf(*arguments, "--ascii").out.isascii() or "·" not in tinytf(*arguments, "--ascii").out


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(
    tinytf: Tinytf, decoder: Path, encoder: Path, corpus: Path, width: int
) -> None:
    for arguments in ((*QUICK, corpus, "-m", decoder), (*QUICK, "-m", encoder, "--by", "distance")):
        ran = tinytf(*arguments, "--width", str(width), screen=True)
        assert ran.status == 0, ran.err
        assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_hundred_and_forty_four_heads_fit_the_screen(twelve_by_twelve: Model, width: int) -> None:
    found = twelve_by_twelve.heads(length=6, count=2, by="first")
    for seven_bit in (False, True):
        screen = Terminal(width, "none", ascii=seven_bit, cuts=True)
        shown = list(paint(blocks_of(found, screen), screen))
        assert max(map(cell_len, shown)) <= width
        assert sum(line.lstrip().startswith("L11H") for line in shown) <= 16


def test_a_name_that_would_act_on_the_terminal_is_shown_and_does_not(
    tinytf: Tinytf, decoder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a\x1b[31mred[bold].txt"
    path.write_text(SENTENCE * 9, "utf-8")
    assert "\x1b" not in tinytf(*QUICK, path, "-m", decoder).out
    assert "[bold]" in tinytf(*QUICK, path, "-m", decoder, "--width", "300").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--length", "2"), "a copy of 2 tokens is too short"),
        (("--length", "33"), "does not fit a context of 64 twice"),
        (("--length", "0"), "--length"),
        (("--by", "inductive"), "--by"),
        (("--top", "0"), "--top"),
        (("--count", "0"), "--count"),
        (("nowhere.txt",), "cannot read nowhere.txt"),
        (("one", "two"), "two"),
        (("notes.txt", "--random"), "--random uses no text"),
        (("-",), "the corpus has no word in it"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("heads", *arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_a_folder_without_text_and_a_binary_file_are_refused(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    assert is_a_clean_error(tinytf(*QUICK, tmp_path, "-m", decoder))
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"a\0b")
    assert is_a_clean_error(tinytf(*QUICK, binary, "-m", decoder))


def test_the_heads_that_follow_grammar_are_marked_as_the_library_says(tinytf: Tinytf, decoder: Path) -> None:
    found = load("tiny").grammar()
    drawn = tinytf("heads", "--grammar").out
    marked = set(re.findall(r"^  (L\dH\d)  follows", drawn.partition("subject-verb   ")[0], re.MULTILINE))
    follows = {f"L{layer}H{head}" for layer, head in found.follows("article-noun").nonzero().tolist()}
    assert marked
    assert marked <= follows
    rows = json.loads(tinytf("heads", "--grammar", "--json").out)["heads"]
    assert {row["head"] for row in rows if row["follows"] and row["relation"] == "article-noun"} == follows
    assert is_a_clean_error(tinytf("heads", "--grammar", "--top", "3", "-m", decoder))
