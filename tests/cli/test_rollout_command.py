"""tinytf attention --rollout: what it draws, its data, its files, and what it refuses."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driving import SENTENCE, WIDE, Tinytf, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.loading import load
from tinytf.look import rollout as analysis


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(
        tinytf("attention", "--rollout", SENTENCE, "-m", decoder, "--heads", "max", "--layer", "0", "--json").out
    )
    size = len(data["tokens"])
    found = load(str(decoder)).rollout(SENTENCE, heads="max", layer=0)
    assert (data["kind"], data["heads"], data["layer"], data["query"]) == ("rollout", "max", 0, size - 1)
    assert data["rollouts"] == found.shares.tolist()
    assert data["rollout"] == data["rollouts"][-1]
    assert data["check"]["holds"] is True


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("attention", "--rollout", SENTENCE, "-m", decoder)
    data = json.loads(tinytf(*arguments, "--json").out)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert [events[0]["type"], events[-1]["type"]] == ["rollout", "check"]
    assert [event["values"] for event in events if event["type"] == "position"] == data["rollouts"]


def test_the_query_is_chosen_by_text_or_number(tinytf: Tinytf, decoder: Path) -> None:
    for word in ("cat", "1"):
        data = json.loads(tinytf("attention", "--rollout", SENTENCE, "-m", decoder, "--query", word, "--json").out)
        assert data["query"] == 1
        assert data["rollout"][2:] == [0.0] * (len(data["tokens"]) - 2)  # nothing comes from behind
    shown = tinytf("attention", "--rollout", SENTENCE, "-m", decoder, "--query", "cat").out
    assert "what ·cat holds (token 1)" in shown


def test_a_mask_is_what_an_encoder_is_read_for(tinytf: Tinytf, encoder: Path) -> None:
    data = json.loads(tinytf("attention", "--rollout", "The cat [MASK] on the mat", "-m", encoder, "--json").out)
    assert data["tokens"][data["query"]]["shown"] == "[MASK]"


def test_rollout_and_maps_go_into_a_file_of_tensors(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rollout.safetensors"
    assert tinytf("attention", "--rollout", SENTENCE, "-m", decoder, "-o", path).status == 0
    tensors = load_file(path)
    assert set(tensors) == {"rollout", "L0.map", "L1.map"}
    assert (tensors["L1.map"] @ tensors["L0.map"] - tensors["rollout"]).abs().max() < 1e-12


def test_every_line_is_a_text_of_its_own(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("attention", "--rollout", "--lines", "-m", decoder, "--json")
    data = json.loads(tinytf(*arguments, stdin=b"The cat\nThe dog saw the cat\n").out)
    assert [one["text"] for one in data["rollouts"]] == ["The cat", "The dog saw the cat"]


def test_in_sentences_nothing_is_drawn_and_colour_changes_no_number(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("attention", "--rollout", SENTENCE, "-m", decoder)
    assert not re.search("[░▒▓█▁▂▃▏▎▍▌]", tinytf(*arguments, "--plain").out)
    numbers, coloured = (
        re.findall(r"\d\.\d{3}", without_colour("\n".join(x for x in tinytf(*arguments, *more).lines if "▄" not in x)))
        for more in ((), ("--color", "always"))
    )
    assert numbers == coloured


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(
    tinytf: Tinytf, decoder: Path, encoder: Path, characters: Path, width: int
) -> None:
    runs = [(SENTENCE, decoder), ("The cat [MASK] on the mat " * 4, encoder), (WIDE["emoji"], characters)]
    for text, model in runs:
        ran = tinytf("attention", "--rollout", text, "-m", model, "--width", str(width), screen=True)
        assert ran.status == 0, ran.err
        assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width


def test_escape_codes_of_a_text_do_not_act(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("attention", "--rollout", "The \x1b[31mcat [bold]sat", "-m", decoder)
    assert ran.status == 0, ran.err
    assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((SENTENCE, "--layer", "2"), "there is no layer 2"),
        ((SENTENCE, "--layer", "-3"), "there is no layer -3"),
        ((SENTENCE, "--query", "99"), "out of range"),
        ((SENTENCE, "--query", "elephant"), "no token is 'elephant'"),
        ((SENTENCE, "--heads", "median"), "--heads"),
        (("",), "the text is empty"),
        (("The cat " * 90,), "takes at most 64"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("attention", "--rollout", *arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_shares_too_small_for_three_digits_are_shown_by_their_size(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = analysis.rollout

    def sunk(model, text, **settings):  # type: ignore[no-untyped-def]
        found = right(model, text, **settings)
        shares = torch.full_like(found.shares, 2e-5)
        shares[:, 0] = 1 - shares[:, 1:].sum(dim=1)
        return replace(found, shares=shares)

    monkeypatch.setattr(analysis, "rollout", sunk)
    shown = tinytf("attention", "--rollout", SENTENCE, "-m", decoder).out
    assert " 0.00002 " in shown
    assert "nearly all is of one token" in shown


def test_shares_that_do_not_sum_to_one_are_status_1(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = analysis.rollout
    monkeypatch.setattr(
        analysis, "rollout", lambda *given, **more: replace(found := right(*given, **more), shares=found.shares * 1.01)
    )
    ran = tinytf("attention", "--rollout", SENTENCE, "-m", decoder)
    assert ran.status == 1
    assert "check failed: the shares in a position do not sum to 1, off by 1.0e-02" in ran.out


def test_the_shares_of_one_token_sum_to_one_exactly(tinytf: Tinytf, decoder: Path) -> None:
    shown = " ".join(tinytf("attention", "--rollout", "a", "-m", decoder).out.split())
    assert "the shares in each position sum to 1, exactly" in shown


def test_a_long_text_can_be_cut(tinytf: Tinytf, decoder: Path) -> None:
    assert tinytf("attention", "--rollout", "The cat " * 90, "-m", decoder, "--truncate").status == 0
