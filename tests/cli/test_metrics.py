"""--metric and --versus on the command line: what they draw at 80 columns, their JSON, and what they refuse."""

import json
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error
from rich.cells import cell_len

from tinytf.metric import METRICS
from tinytf_cli import text_options

PLACES = Path(__file__).parents[2] / "samples" / "places.jsonl"
CLEAN, CORRUPT = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"
PATCH, ABLATE, ATTRIBUTE = ("patch", CLEAN, CORRUPT), ("ablate", CLEAN), ("attribute", CLEAN)


def test_the_option_has_the_metrics_of_the_library() -> None:
    assert tuple(METRICS) == text_options.METRICS


@pytest.mark.parametrize("name", METRICS)
def test_a_screen_and_its_json_name_the_metric_and_its_unit(tinytf: Tinytf, name: str) -> None:
    answer = {"set": "ball,hat", "text": "ball and hat", "one": "hat"}.get(METRICS[name].answer)
    for words, option in ((PATCH, "--answer"), (ABLATE, "--target"), (ATTRIBUTE, "--token")):
        if words is ATTRIBUTE and name in ("rank", "loss"):
            continue
        given = () if answer is None else (option, "ball" if words is ATTRIBUTE and name == "log_prob" else answer)
        given = (*given, "--versus", "key") if METRICS[name].versus else given
        at = () if words is ATTRIBUTE else ("--at", "L1H0")
        data = json.loads(tinytf(*words, *at, "--metric", name, *given, "--json").out)
        metric = data["contrast"]["metric"] if words is PATCH else data["metric"]
        assert (metric["name"], metric["unit"]) == (name, METRICS[name].unit)
        ran = tinytf(*words, *at, "--metric", name, *given, "--width", "80")
        assert ran.status == 0, ran.err
        assert METRICS[name].noun.split()[-1] in ran.out.replace("lead", "logit difference").replace("ln p", "-prob")
        assert max(map(cell_len, ran.lines)) <= 80
        unit = METRICS[name].unit
        assert unit not in ("nats", "nats a token") or "nats" in ran.out


def test_an_answer_from_a_file_is_a_set(tinytf: Tinytf, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("ball\nhat\n")
    found = [
        json.loads(tinytf(*ABLATE, "--at", "L1H0", "--metric", "prob", "--target", words, "--json").out)
        for words in ("ball,hat", f"@{tmp_path / 'words.txt'}")
    ]
    assert found[0]["after"] == found[1]["after"]
    assert [one["token"] for one in found[1]["metric"]["answer"]] == ["·ball", "·hat"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*PATCH, "--metric", "logits"), "'logits' is not one of"),
        ((*PATCH, "--metric", "kl", "--answer", "ball"), "the metric kl takes no --answer"),
        ((*PATCH, "--metric", "rank", "--answer", "hat", "--estimate", "gradient"), "rank has no gradient"),
        ((*PATCH, "--answer", "ball and hat"), "--answer 'ball and hat' is 3 tokens"),
        ((*PATCH, "--metric", "prob", "--answer", "@nowhere.txt"), "cannot read nowhere.txt"),
        (("ablate", "The", "--at", "L1H0", "--metric", "loss"), "a text of one token has no loss"),
        ((*ABLATE, "--at", "L1H0", "--repair", "--metric", "kl"), "--repair splits a logit"),
        ((*ATTRIBUTE, "--metric", "loss"), "parts are of the logits of one position"),
        ((*ATTRIBUTE, "--metric", "rank"), "rank has no gradient"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, words: tuple[str, ...], message: str) -> None:
    ran = tinytf(*words)
    assert ran.status == 2
    assert is_a_clean_error(ran)
    assert message in ran.err


def test_two_files_of_pairs_are_compared_on_one_screen(tinytf: Tinytf, tmp_path: Path) -> None:
    halves = [tmp_path / name for name in ("near.jsonl", "far.jsonl")]
    lines = PLACES.read_text().splitlines()
    for half, some in zip(halves, (lines[:12], lines[12:]), strict=True):
        half.write_text("\n".join(some))
    question = ("patch", "--pairs", halves[0], "--versus", halves[1], "--sweep", "heads")
    data = json.loads(tinytf(*question, "--json").out)
    alone = [json.loads(tinytf("patch", "--pairs", half, "--sweep", "heads", "--json").out) for half in halves]
    assert data["kind"] == "over_pairs_versus"
    for row, *both in zip(data["rows"], *(each["rows"] for each in alone), strict=True):
        first, second = (each["recovered"]["value"] for each in both)
        assert (row["first"]["value"], row["second"]["value"]) == pytest.approx((first, second))
        assert row["difference"]["value"] == pytest.approx(first - second)
        assert row["difference"]["low"] <= row["difference"]["value"] <= row["difference"]["high"]
    ran = tinytf(*question, "--width", "100")
    assert len(ran.lines) <= 45
    assert " ".join(ran.out.split()).startswith(" ".join(data["sentence"].split()))
    assert max(cell_len(line) for line in ran.lines) <= 100
    events = [json.loads(line) for line in tinytf(*question, "--format", "ndjson").lines]
    assert sum(event["type"] == "row" for event in events) == len(data["rows"])


@pytest.mark.parametrize("name", ["score", "attribute", "lens", "attention", "heads", "ablate"])
def test_every_question_over_pairs_is_silent_about_a_file_and_itself(tinytf: Tinytf, name: str) -> None:
    more = ("--sweep", "ffn") if name == "ablate" else ()
    data = json.loads(tinytf(name, "--pairs", PLACES, "--versus", PLACES, *more, "--json").out)
    assert {row["difference"]["value"] for row in data["rows"]} == {0.0}
    assert not data["is_clear"]
