"""tinytf explain: what it draws, its data, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from driving import SENTENCE, Tinytf, digits, is_a_clean_error, without_colour
from rich.cells import cell_len

from tinytf.loading import load
from tinytf.trace import record as recording

SCORE = "L1H1.scores[sat,cat]"


def test_the_printed_terms_add_up_to_the_recorded_number(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("explain", SCORE, SENTENCE, "-m", decoder, "--top", "3")
    assert ran.status == 0, ran.err
    recorded = float(load(str(decoder)).trace(SENTENCE)[SCORE])
    printed = re.findall(r"^  (?:d\d+|\d+ more) .*?(-?\d+\.\d{6})(?: |$)", ran.out, re.MULTILINE)
    assert len(printed) == 4
    assert sum(map(float, printed)) == pytest.approx(recorded, abs=1e-5)
    said = re.fullmatch(r"checked: the terms add up to the recorded (\S+), off by \S+", ran.lines[-1])
    assert said
    assert float(said[1]) == pytest.approx(recorded, rel=1e-6)


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("explain", SCORE, SENTENCE, "-m", decoder, "--depth", "4", "--top", "5", "--json").out)
    found = load(str(decoder)).explain(SENTENCE, SCORE, depth=4, top=5)
    assert data["kind"] == "explain"
    assert data["explanations"] == digits(json.loads(json.dumps([one.to_dict() for one in found])))
    assert data["check"]["holds"] is True
    assert data["check"]["cells"] == len(found) > 4


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("explain", SCORE, SENTENCE, "-m", decoder, "--depth", "3")
    data = json.loads(tinytf(*arguments, "--json").out)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert [events[0]["type"], events[-1]["type"]] == ["explain", "check"]
    cells = [event for event in events if event["type"] == "cell"]
    assert [{"type": "cell", **one} for one in data["explanations"]] == cells


def test_every_step_back_has_a_heading_of_its_own(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("explain", "L0.norm1[2,5]", SENTENCE, "-m", decoder, "--depth", "9")
    headings = [line.split()[0] for line in ran.lines[1:] if re.match(r"(L0|embed)\.", line)]
    assert headings[:3] == ["L0.norm1[2,5]", "L0.in[2,5]", "embed.out[2,5]"]
    assert headings[3] in ("embed.tokens[2,5]", "embed.positions[2,5]")
    assert "  1 back, goes into L0.norm1[2,5] · token 2 ·sat, d5 · a sum" in ran.lines
    assert "recorded numbers of 4 cells" in ran.lines[-1]


def test_a_depth_without_end_ends_at_the_embeddings_and_says_so(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("explain", "L0.norm1[2,5]", SENTENCE, "-m", decoder, "--depth", "1000000000")
    assert ran.status == 0
    assert "levels of the 1,000,000,000 asked for: nothing is below" in ran.out


def test_a_token_of_the_vocabulary_is_named_by_its_text_or_number(tinytf: Tinytf, decoder: Path) -> None:
    tokenizer = load(str(decoder)).tokenizer
    number = tokenizer.encode(" the", special=False).tokens[0].id
    for word in ("·the", f"#{number}", str(number)):
        ran = tinytf("explain", f"probs[sat,{word}]", SENTENCE, "-m", decoder, "--temperature", "2", "--json")
        assert json.loads(ran.out)["explanations"][0]["address"] == f"probs[2,{number}]", ran.err


def test_what_the_vocabulary_lacks_is_not_taken_for_its_unknown_token(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("explain", "logits[sat,☃]", SENTENCE, "-m", encoder)
    assert is_a_clean_error(ran)
    assert "token '☃' is not in the vocabulary" in ran.err
    assert tinytf("explain", "logits[sat,[MASK]]", SENTENCE, "-m", encoder).status == 0


def test_a_masked_cell_says_why_and_is_null_in_json(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("explain", "L0H0.masked[The,cat]", SENTENCE, "-m", decoder)
    assert "masked: key 1 ·cat comes after query 0 The" in tinytf(*arguments).out
    assert json.loads(tinytf(*arguments, "--json").out)["explanations"][0]["recorded"] is None


def test_a_number_that_does_not_add_up_is_status_1(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = recording.Trace

    def broken(model, encoding, recorded, *source):  # type: ignore[no-untyped-def]
        recorded.tensors["L0.q"][1, 2, 3] += 0.5
        return right(model, encoding, recorded, *source)

    monkeypatch.setattr(recording, "Trace", broken)
    ran = tinytf("explain", "L0H1.q[2,3]", SENTENCE, "-m", decoder)
    assert ran.status == 1
    assert re.match(r"check failed: at L0H1\.q\[2,3\] .* differ by 5\.0e-01", ran.lines[-1])
    assert tinytf("explain", "L0H1.q[2,4]", SENTENCE, "-m", decoder).status == 0


def test_in_sentences_nothing_is_drawn_and_colour_changes_no_word(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("explain", SCORE, SENTENCE, "-m", decoder, "--depth", "3")
    assert not re.search("[░▒▓█▁▂▃▏▎▍▌]", tinytf(*arguments, "--plain").out)
    coloured = tinytf(*arguments, "--color", "always").lines
    assert [without_colour(line).rstrip() for line in coloured] == tinytf(*arguments).lines != coloured


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(tinytf: Tinytf, encoder: Path, width: int) -> None:
    for address in ("L1.norm2[sat,3]", "L0H1.weights[sat,cat]", "L0.ffn[sat,3]", "pooled[2]", "probs[sat,5]"):
        ran = tinytf("explain", address, SENTENCE, "-m", encoder, "--depth", "3", "--width", str(width), screen=True)
        assert ran.status == 0, ran.err
        assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width


def test_without_an_address_it_is_the_prediction_and_one_after_the_text_is_taken(tinytf: Tinytf, decoder: Path) -> None:
    opened = load(str(decoder))
    best = int(opened.trace(SENTENCE)["logits"][-1].argmax())
    last = len(opened.encode(SENTENCE).ids) - 1
    for words in ((SENTENCE,), tuple(SENTENCE.split()), (SENTENCE, "--depth", "2")):
        ran = tinytf("explain", *words, "-m", decoder)
        assert ran.out.startswith(f"logits[{last},{best}] (")
        assert "attribute says which parts of the model made it" in ran.err
    assert opened.explain(SENTENCE)[0].address == f"logits[{last},{best}]"
    assert (
        tinytf("explain", SENTENCE, SCORE, "-m", decoder).out == tinytf("explain", SCORE, SENTENCE, "-m", decoder).out
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("L0H0.scores", SENTENCE), "for example L0H0.scores[0,0]"),
        (("next", SENTENCE), "next has no arithmetic"),
        ((SENTENCE, "L0H0.nonsense[0,0]"), "nonsense"),
        (("L0H0.scores[0,99]", SENTENCE), "key 99 is out of range"),
        (("logits[sat,catastrophically]", SENTENCE), "token 'catastrophically' is 14 tokens"),
        (("logits[sat,3]", SENTENCE, "--temperature", "2"), "a temperature belongs to probs"),
        (("probs[sat,3]", SENTENCE, "--temperature", "0"), "--temperature"),
        (("probs[sat,3]", SENTENCE, "--depth", "0"), "--depth"),
        (("probs[sat,3]", ""), "the text is empty"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("explain", *arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


@pytest.mark.parametrize("text", ["U.S.", "e.g. this", "a[b", "a\x1b[31mb", "L.A. is", "1.5"])
def test_a_text_with_dots_and_brackets_is_no_address(tinytf: Tinytf, text: str) -> None:
    ran = tinytf("explain", text, "-m", "tiny")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("logits[")
