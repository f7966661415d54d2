"""tinytf patch: what it draws, its data, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.loading import load

CLEAN, CORRUPT = "The cat sat on the mat", "The dog sat on the mat"
TOKENS = ("--answer", "the", "--versus", "cat")


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS, "--json").out)
    found = load(str(decoder)).patch_sweep(CLEAN, CORRUPT, "residual", answer="the", versus="cat")
    assert data["kind"] == "patch_sweep"
    assert data["recovered"] == found.recovered.tolist()
    assert [data["contrast"]["metric"][name][0]["token"] for name in ("answer", "versus")] == ["·the", "·cat"]
    assert (data["clean"]["text"], data["corrupt"]["text"]) == (CLEAN, CORRUPT)
    assert all(check["holds"] for check in data["checks"])


def test_the_map_shows_every_layer_at_every_token_from_the_first_difference_on(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS)
    assert ran.status == 0, ran.err
    assert "token 0 is the same in both texts" in ran.out
    data = json.loads(tinytf("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS, "--json").out)
    names = [token["shown"] for token in data["corrupt"]["tokens"]]
    rows = [line for line in ran.lines if re.match(r"  \S+ +-?\d+\.\d+\D+?-?\d+\.\d+\D?$", line)]
    shown = [[float(cell) for cell in re.findall(r"-?\d+\.\d+", row)] for row in rows if row.split()[0] in names]
    first = next(i for i, row in enumerate(zip(*data["recovered"], strict=True)) if any(row))
    expected = [list(row) for row in zip(*data["recovered"], strict=True)][first:]
    for row, numbers in zip(shown, expected, strict=True):
        assert row == pytest.approx(numbers, abs=0.006)


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS, "--sweep", "heads")
    data = json.loads(tinytf(*arguments, "--json").out)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert events[0]["type"] == "patch_sweep"
    assert [one["recovered"] for one in events if one["type"] == "layer"] == data["recovered"]
    assert [one["type"] for one in events[-3:]] == ["check"] * 3


def test_the_tensors_are_the_map(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    assert tinytf("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS, "--sweep", "heads", "-o", path).status == 0
    assert load_file(path)["recovered"].shape == (2, 2)


def test_one_patch_at_one_token_says_how_much_comes_back(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS)
    data = json.loads(tinytf(*arguments, "--at", "L1.in", "--position", "sat", "--json").out)
    place = [token["shown"] for token in data["corrupt"]["tokens"]].index("·sat")
    swept = json.loads(tinytf(*arguments, "--json").out)
    assert data["positions"] == [place]
    assert data["recovered"] == pytest.approx(swept["recovered"][1][place], abs=1e-4)
    assert [one["token"] for one in data["choices"][:2]] == ["·the", "·cat"]
    whole = tinytf(*arguments, "--at", "L0.in")
    assert "  1.0000 of the clean run recovered" in whole.out
    assert whole.lines[-1].startswith("checked: everything patched is the clean run, exactly; nothing patched")


def test_texts_of_different_lengths_are_shown_token_above_token(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("patch", "The cat sat on the mat", "The cat sat on the big red mat", "-m", decoder)
    assert (ran.status, ran.out) == (2, "")
    clean, corrupt, error, hint = ran.err.splitlines()
    assert re.fullmatch(r"tinytf: clean    … ·sat  ·on  ·the  –  .*·mat", clean)
    assert re.fullmatch(r"tinytf: corrupt  … ·sat  ·on  ·the  ·.*·mat", corrupt)
    assert clean.index("·mat") == corrupt.index("·mat")
    assert "nothing is against" in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("width", ["20", "60", "200"])
def test_aligned_tokens_fit_the_screen_whatever_they_are(tinytf: Tinytf, decoder: Path, width: str) -> None:
    ran = tinytf("patch", "cat \x1b[31m 🐈 " * 2, "猫が dog " * 2, "-m", decoder, "--width", width)
    assert ran.status == 2
    assert "\x1b" not in ran.err
    assert all(cell_len(line) <= max(30, int(width)) for line in ran.err.splitlines()[:2])


def test_an_encoder_is_patched_at_its_mask(tinytf: Tinytf, encoder: Path) -> None:
    texts = ("The cat [MASK] on the mat", "The dog [MASK] on the mat")
    ran = tinytf("patch", *texts, "-m", encoder, "--answer", "#9", "--versus", "#30")
    assert ran.status == 0, ran.err
    assert "at [MASK]" in ran.out
    moved = ("The [MASK] cat", "[MASK] The cat")
    ran = tinytf("patch", *moved, "-m", encoder)
    assert is_a_clean_error(ran)
    assert "[MASK] is at 2 in the clean text and at 1 in the corrupt one" in ran.err
    assert "hint: put it at the same place in both" in ran.err


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_screen(tinytf: Tinytf, decoder: Path, width: int) -> None:
    for options in ((), ("--sweep", "heads"), ("--at", "L0.ffn")):
        for more in ((), ("--ascii", "--color", "never")):
            arguments = ("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS, "--width", str(width))
            ran = tinytf(*arguments, *options, *more, screen=True)
            assert ran.status == 0, ran.err
            assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width


def test_in_sentences_nothing_is_drawn(tinytf: Tinytf, decoder: Path) -> None:
    said = tinytf("patch", CLEAN, CORRUPT, "-m", decoder, *TOKENS, "--plain").out
    assert not re.search("[░▒▓█▏▎▍▌│]", said)
    assert " , " not in said  # what stands for a sign of the screen
    assert re.search(r"different tokens: \d ·\w+ against ·\w+;", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((CLEAN,), "CORRUPT"),
        ((CLEAN, CLEAN), "the same tokens"),
        ((CLEAN, ""), "the text is empty"),
        ((CLEAN, CORRUPT, "--answer", "the", "--versus", "the"), "both are one token"),
        ((CLEAN, CORRUPT, "--answer", "catastrophically"), "--answer 'catastrophically' is"),
        ((CLEAN, CORRUPT, *TOKENS, "--position", "1"), "--position goes with --at"),
        ((CLEAN, CORRUPT, *TOKENS, "--at", "L0.in", "--position", "99"), "there is no position 99"),
        ((CLEAN, CORRUPT, *TOKENS, "--at", "L0", "--sweep", "attn"), "two things at once"),
        ((CLEAN, CORRUPT, *TOKENS, "--at", "embed.out"), "cannot be replaced"),
        ((CLEAN, CORRUPT, *TOKENS, "--at", "L0.ffn[1]", "--position", "2"), "names its tokens already"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("patch", *arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err
