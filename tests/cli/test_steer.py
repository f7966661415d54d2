"""``tinytf steer`` and ``generate --add``: from pairs to a file, from the file to a text, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from driving import Ran, Tinytf, is_a_clean_error, without_colour

import tinytf as library

PAIRS = [("The dog was happy", "The dog was sad"), ("The cat was happy", "The cat was sad"),
         ("A girl was glad", "A girl was sad"), ("A boy was happy and", "A boy was sad and")]  # fmt: skip
PROMPT = "The dog was"


def data_of(ran: Ran) -> dict[str, Any]:
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"clean": a, "corrupt": b}) + "\n" for a, b in PAIRS), "utf-8")
    return path


def test_pairs_become_a_file_and_the_file_a_text(tinytf: Tinytf, pairs: Path) -> None:
    model = library.load("tiny")
    made = model.steer(str(pairs))
    shown = data_of(tinytf("steer", "pairs.jsonl", "--json"))
    assert shown["sentence"] == made.sentence
    wrote = tinytf("steer", "pairs.jsonl", "-o", "joy.safetensors")
    assert wrote.out == ""
    assert made.sentence in wrote.err
    assert [row["at"] for row in data_of(tinytf("steer", "joy.safetensors", "--json"))["vectors"]] == [
        "L0.out", "L1.out", "L2.out", "L3.out",
    ]  # fmt: skip
    text = tinytf("generate", PROMPT, "--add", "L1.out:joy.safetensors*-1.5", "--max-tokens", "8")
    assert (text.status, text.err) == (0, "")
    with model.steered({"L1.out": -1.5 * made}):
        assert text.out == model.generate(PROMPT, max_tokens=8) + "\n"
    for options, changes in (("--no-cache",), 1), (("--remove", "L*.out:joy.safetensors"), 5):
        words = ("generate", PROMPT, "--add", "L1.out:joy.safetensors", "--max-tokens", "4", *options)
        data = data_of(tinytf(*words, "--json"))
        assert len(data["changes"]) == changes
        assert len(data["samples"][0]["kl"]) == 4
        assert data["plain"] == [model.generate(PROMPT, max_tokens=4)]


def test_what_a_vector_tells_apart_stands_beside_random_directions(tinytf: Tinytf, pairs: Path) -> None:
    vectors = data_of(tinytf("steer", "pairs.jsonl", "--controls", "7", "--json"))["vectors"]
    for vector in vectors:
        control = vector["control"]
        assert control["what"] == f"random directions at {vector['at']}"
        assert (control["effect"], control["count"]) == (vector["accuracy"]["value"], 7)
    screen = " ".join(tinytf("steer", "pairs.jsonl", "--controls", "7", "--width", "80").out.split())
    assert re.search(r"random controls: \d of 7 random directions at L\d\.out reach(es)? it; their shares told", screen)
    without = tinytf("steer", "pairs.jsonl", "--controls", "0")
    assert "random" not in without.out
    assert tinytf("steer", "pairs.jsonl", "-o", "joy.safetensors").status == 0
    refused = tinytf("steer", "joy.safetensors", "--controls", "7")
    assert is_a_clean_error(refused, 2)
    assert "--controls goes with --curve, or pairs instead of a vector" in refused.err


def test_a_control_vector_is_for_every_layer_that_it_holds(tinytf: Tinytf, pairs: Path) -> None:
    assert tinytf("steer", "pairs.jsonl", "-o", "joy.gguf").status == 0
    data = data_of(tinytf("generate", PROMPT, "--add", "joy.gguf*0.5", "--max-tokens", "2", "--json"))
    assert [change["at"] for change in data["changes"]] == ["L1.out", "L2.out", "L3.out"]
    assert data["steering"] == ["0.5 × joy.gguf at 3 steps, L1.out to L3.out"]
    assert "may be a model" in tinytf("steer", "pairs.jsonl", "-o", "joy.gguf").err
    assert "--at L12.out" in tinytf("generate", PROMPT, "--remove", "joy.gguf").err
    refused = tinytf("trace", PROMPT, "-o", "trace.gguf")
    assert "would be a control vector, and this result is none" in refused.err
    assert not Path("trace.gguf").exists()


def test_a_screen_and_compare_show_the_plain_text_too(tinytf: Tinytf, pairs: Path) -> None:
    tinytf("steer", "pairs.jsonl", "--at", "L1.out", "-o", "joy.safetensors")
    words = ("generate", PROMPT, "--add", "joy.safetensors", "--max-tokens", "8")
    plain = library.load("tiny").generate(PROMPT, max_tokens=8)
    piped, screen, compared = tinytf(*words), tinytf(*words, screen=True), tinytf(*words, "--compare")
    assert plain not in piped.out
    for ran in (without_colour(screen.out), compared.out):
        assert plain in ran
        assert "each prediction moves by" in ran
        assert "those without a cache" in ran
    assert re.search(r"the 6 that move most of 8, whose median is [\d.]+", compared.out)
    assert "median" not in tinytf("generate", PROMPT, "--add", "joy.safetensors", "--max-tokens", "1", "--compare").out
    assert piped.out.strip()[:12] in without_colour(screen.out)
    files = [Path("a.svg"), Path("a.ndjson"), Path("a.csv")]
    assert [tinytf(*words, "-o", file).status for file in files] == [0, 0, 0]


@pytest.mark.slow
def test_a_curve_follows_the_tokens_that_are_asked_for(tinytf: Tinytf, pairs: Path) -> None:
    words = ("steer", "pairs.jsonl", PROMPT, "--curve=-1:1:0.5", "--ask", "happy", "--ask", "sad")
    data = data_of(tinytf(*words, "--json"))
    assert [dose["strength"] for dose in data["doses"]] == [-1, -0.5, 0, 0.5, 1]
    assert [token["token"] for token in data["asked"]] == ["·happy", "·sad"]
    assert data["doses"][2]["kl"] == data["doses"][2]["elsewhere"]["value"] == 0
    best = data_of(tinytf("steer", "pairs.jsonl", "--json"))
    assert data["steering"] == f"pairs.jsonl at {library.load('tiny').steer(str(pairs)).best.at}"
    assert best["source"] == "pairs.jsonl"
    for width in ("80", "120"):
        lines = without_colour(tinytf(*words, "--width", width, screen=True).out).splitlines()
        assert max(map(len, lines)) <= int(width)
        assert len(lines) <= 45


REFUSED = {
    "not LOW:HIGH:STEP": ("steer", "pairs.jsonl", PROMPT, "--curve", "1:2"),
    "does not rise by steps": ("steer", "pairs.jsonl", PROMPT, "--curve", "0:1:nan"),
    "1,000,000 strengths": ("steer", "pairs.jsonl", PROMPT, "--curve", "0:1:1e-9"),
    "go with --curve": ("steer", "pairs.jsonl", PROMPT),
    "is a vector already": ("steer", "joy.safetensors", "--method", "pca"),
    "has no vector for L0.out": ("steer", "joy.safetensors", "--at", "L0.out"),
    "is not a table of pairs": ("steer", "notes.md"),
    "cannot read nowhere.jsonl": ("steer", "nowhere.jsonl"),
    "cannot read nowhere.gguf": ("generate", PROMPT, "--add", "nowhere.gguf"),
    "one that runs through transformers": ("steer", "pairs.jsonl", "--through", "transformers"),
    "names no file": ("generate", PROMPT, "--add", "L1.out:"),
    "'lots' is no strength": ("generate", PROMPT, "--add", "joy.safetensors*lots"),
    "'nan' is no strength": ("generate", PROMPT, "--add", "joy.safetensors*nan"),
    "a direction is removed whole": ("generate", PROMPT, "--remove", "joy.safetensors*2"),
    "there is no layer 9": ("generate", PROMPT, "--add", "L9.out:joy.safetensors"),
    "llama-tiny is 256 wide": ("generate", PROMPT, "--add", "joy.safetensors", "-m", "preset:llama-tiny"),
    "--beams does not go with": ("generate", PROMPT, "--add", "joy.safetensors", "--beams", "2"),
    "--quantize does not go with": ("generate", PROMPT, "--add", "joy.safetensors", "--quantize", "int8"),
    "slides has none": ("generate", PROMPT, "--add", "joy.safetensors", "--on-overflow", "slide"),
    "with and without a vector": ("generate", PROMPT, "--compare"),
    "an encoder": ("generate", PROMPT, "--add", "joy.safetensors", "-m", "tiny-encoder"),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_sense_is_refused_in_a_line(tinytf: Tinytf, pairs: Path, message: str) -> None:
    Path("notes.md").write_text("no pairs", "utf-8")
    assert tinytf("steer", "pairs.jsonl", "--at", "L1.out", "-o", "joy.safetensors").status == 0
    ran = tinytf(*REFUSED[message])
    assert is_a_clean_error(ran)
    assert message in ran.err


def test_the_vector_of_another_model_is_noted_and_pairs_may_be_messages(tinytf: Tinytf, pairs: Path) -> None:
    tinytf("steer", "pairs.jsonl", "--at", "L1.norm2", "-m", "tiny-encoder", "-o", "joy.safetensors")
    assert "was made with tiny-encoder, and this is tiny" in tinytf("steer", "joy.safetensors").err
    assert "no chat template" in tinytf("steer", "pairs.jsonl", "--chat").err
