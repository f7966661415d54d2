"""tinytf patch --estimate, --from and --to: what they draw, their data, and what they refuse."""

import json
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.loading import load
from tinytf.pairs.pair import PairSet

CLEAN, CORRUPT = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"
PAIRS = [
    {"clean": CLEAN, "corrupt": CORRUPT, "answer": " ball", "versus": " hat", "kind": "cat"},
    {"clean": CORRUPT, "corrupt": CLEAN, "answer": " hat", "versus": " ball", "kind": "back"},
]
MODES = [
    ("--estimate", "gradient", "--sweep", "heads", "--beside", "exact"),
    ("--estimate", "integrated", "--steps", "3", "--sweep", "attn"),
    ("--estimate", "gradient", "--sweep", "neurons"),
    ("--from", "L0H2", "--to", "L1H0.k"),
    ("--from", "embeddings", "--sweep", "to"),
    ("--to", "logits", "--sweep", "from"),
]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PAIRS), "utf-8")
    return path


@pytest.mark.share(4)
@pytest.mark.parametrize("mode", MODES)
def test_the_answer_comes_first_on_one_screen_of_any_width(tinytf: Tinytf, mode: tuple[str, ...]) -> None:
    sentence = json.loads(tinytf("patch", CLEAN, CORRUPT, *mode, "--json").out)["sentence"]
    assert sentence.endswith(".")
    for width in (80, 120, 200):
        ran = tinytf("patch", CLEAN, CORRUPT, *mode, "--width", str(width), screen=True)
        assert ran.status == 0, ran.err
        lines = without_colour(ran.out).splitlines()
        assert " ".join(line.strip() for line in lines).startswith(sentence)
        assert len(lines) <= 45
        assert max(map(cell_len, lines)) <= width


def test_the_data_of_an_estimate_are_those_of_the_library(tinytf: Tinytf, tmp_path: Path) -> None:
    arguments = ("patch", CLEAN, CORRUPT, "--estimate", "gradient", "--sweep", "heads")
    data = json.loads(tinytf(*arguments, "--json").out)
    found = load("tiny").patch_estimate(CLEAN, CORRUPT, "heads")
    assert data["kind"] == "patch_estimate"
    assert data["recovered"] == found.recovered.tolist()
    assert (data["how"], data["steps"], data["beside"]) == ("gradient", 1, None)
    assert tinytf(*arguments, "-o", tmp_path / "map.safetensors").status == 0
    assert load_file(tmp_path / "map.safetensors")["recovered"].shape == (4, 4)
    events = [json.loads(line)["type"] for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert (events[0], events.count("layer"), events[-1]) == ("patch_estimate", 4, "check")


def test_the_data_of_a_sweep_of_paths_are_those_of_the_library(tinytf: Tinytf) -> None:
    arguments = ("patch", CLEAN, CORRUPT, "--to", "L1H0.v", "--sweep", "from")
    data = json.loads(tinytf(*arguments, "--json").out)
    found = load("tiny").patch_paths(CLEAN, CORRUPT, receivers="L1H0.v")
    assert [end["name"] for end in data["ends"]] == ["L0.in", "L0H0", "L0H1", "L0H2", "L0H3", "L0.ffn"]
    assert [end["recovered"] for end in data["ends"]] == [end.recovered for end in found.ends]
    assert (data["sweep"], data["fixed"]) == ("from", ["L1H0.v"])
    events = [json.loads(line)["type"] for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert events == ["patch_paths", *["end"] * 6, *["check"] * 2]


def test_pairs_whose_answers_lead_no_more_get_no_share_in_words() -> None:
    turned = {**PAIRS[0], "clean": CORRUPT, "corrupt": CLEAN}
    found = load("tiny").patch_estimate_pairs(PairSet.of([turned]))
    assert found.sentence == "Over 1 pair, the answers lead no more after the clean texts than after the corrupt ones."


def test_estimates_over_a_table_of_pairs_have_intervals(tinytf: Tinytf, pairs: Path) -> None:
    ran = tinytf("patch", "--pairs", pairs, "--estimate", "gradient", "--beside", "exact")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("Over 2 pairs, estimated by gradients, L1H0 of the clean run would bring back")
    assert "95 % interval" in ran.out
    assert "rank correlation" in ran.out
    data = json.loads(tinytf("patch", "--pairs", pairs, "--where", "kind=cat", "--estimate", "gradient", "--json").out)
    assert (data["kind"], data["asked"], data["pairs"]["count"]) == ("over_pairs", "patch_estimate", 1)
    assert data["rows"][4]["estimated"]["low"] is None
    alone = load("tiny").patch_estimate(CLEAN, CORRUPT, "heads", answer="ball", versus="hat")
    shares = [row["estimated"]["value"] for row in data["rows"]]
    assert shares == pytest.approx(alone.recovered.flatten().tolist(), abs=1e-5)


def test_pairs_are_kept_in_a_file_to_resume_from(tinytf: Tinytf, pairs: Path, tmp_path: Path) -> None:
    for number, options in enumerate((("--at", "L1H0"), ("--estimate", "gradient", "--beside", "exact"))):
        arguments = ("patch", "--pairs", pairs, *options, "--resume", tmp_path / f"kept{number}", "--json")
        first, again = tinytf(*arguments), tinytf(*arguments)
        assert first.status == 0, first.err
        assert json.loads(first.out)["rows"] == json.loads(again.out)["rows"]
        assert len((tmp_path / f"kept{number}").read_text("utf-8").splitlines()) == len(PAIRS)


@pytest.mark.parametrize(
    "options",
    [
        ("--at", "L1H0"),
        ("--sweep", "heads"),
        (),
        ("--sweep", "heads", "--estimate", "gradient"),
        ("--from", "embeddings", "--to", "L1H0.v"),
        ("--to", "logits", "--sweep", "from"),
    ],
)
def test_no_lead_is_brought_back_that_the_clean_text_has_less_of(tinytf: Tinytf, options: tuple[str, ...]) -> None:
    ran = tinytf("patch", CLEAN, CORRUPT, "--answer", "hat", "--versus", "ball", *options)
    assert ran.out.startswith("The lead of ·hat over ·ball is smaller after the clean text than after the corrupt one.")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at", "L1H0"), "L1H0 of the clean run neither brings back nor takes away as much as 0.1 % of the lead"),
        (("--sweep", "heads"), "No patch brings back or takes away as much as 0.1 % of the lead of ·ball over ·hat."),
        (("--sweep", "heads", "--estimate", "gradient"), "Estimated by gradients, no patch brings back or takes away"),
        (("--from", "L1H0", "--sweep", "to"), "No direct path from L1H0 brings back or takes away as much as 0.1 %"),
    ],
)
def test_what_changes_nothing_does_not_matter_most(tinytf: Tinytf, options: tuple[str, ...], said: str) -> None:
    ran = tinytf("patch", CLEAN, CORRUPT, *options, "--position", "0", "--width", "200")
    assert ran.out.startswith(said)


def test_positions_that_a_heading_leaves_out_are_counted(tinytf: Tinytf) -> None:
    ran = tinytf("patch", CLEAN, CORRUPT, "--at", "L0H1", "--position", "0-9", "--width", "200")
    assert "L0H1 at 0 The, 1 ·cat, 2 ·lost, 3 ·the, 4 ·hat, 5 ., 6 ·The, 7 ·cat and 2 more" in ran.out


def test_a_patch_at_the_tokens_of_its_address_is_not_said_to_be_at_all_positions(tinytf: Tinytf) -> None:
    for options in (("--at", "L0.ffn[hat]"), ("--from", "L0.in[hat]", "--to", "L1H0.v")):
        ran = tinytf("patch", CLEAN, CORRUPT, *options)
        assert "[4]" in ran.out
        assert "at all positions" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((CLEAN, CORRUPT, "--from", "L1H0"), "a path has two ends"),
        ((CLEAN, CORRUPT, "--from", "L1H0", "--sweep", "from"), "--sweep from goes with --to alone"),
        ((CLEAN, CORRUPT, "--from", "L2H0", "--to", "L1H0.q"), "no path leads from L2H0 to L1H0.q"),
        ((CLEAN, CORRUPT, "--from", "L0H0", "--to", "logits", "--at", "L0H0"), "ask for two things at once"),
        ((CLEAN, CORRUPT, "--to", "L0.in", "--sweep", "from"), "no path leads to L0.in"),
        ((CLEAN, CORRUPT, "--from", "L0.in[4]", "--to", "logits", "--position", "4"), "names its tokens already"),
        ((CLEAN, CORRUPT, "--recompute-ffn"), "--recompute-ffn goes with"),
        ((CLEAN, CORRUPT, "--estimate", "gradient", "--at", "L0H0"), "ask for two things at once"),
        ((CLEAN, CORRUPT, "--estimate", "gradient", "--steps", "3"), "--steps goes with --estimate integrated"),
        ((CLEAN, CORRUPT, "--beside", "exact"), "go with --estimate"),
        ((CLEAN, CORRUPT, "--where", "a=b"), "there is no --pairs"),
        ((CLEAN, CORRUPT, "--estimate", "gradient", "--resume", "a"), "--resume goes with --beside exact"),
        ((CLEAN, "--pairs", "PAIRS", "--estimate", "gradient"), "CLEAN does not go with --estimate and --pairs"),
        (("--pairs", "PAIRS", "--estimate", "gradient", "--sweep", "residual"), "the whole stream"),
        (
            ("--pairs", "PAIRS", "--estimate", "gradient", "--answer", "a"),
            "with --pairs, --answer goes with --metric prob",
        ),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, pairs: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("patch", *(str(pairs) if word == "PAIRS" else word for word in arguments))
    assert is_a_clean_error(ran)
    assert said in ran.err
