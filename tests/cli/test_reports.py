"""Whatever a command prints with --json, Python has as a report's to_dict."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driving import SENTENCE, Tinytf

from tinytf.loading import Model, info, load
from tinytf.models import catalogue
from tinytf.report import Report
from tinytf_cli.encodings import to_json

OTHER = "The dog sat on the mat"

REPORTS: dict[tuple[str, ...], Callable[[Model], Report]] = {
    ("lens", SENTENCE): lambda model: model.lens(SENTENCE),
    ("lens", SENTENCE, "--top", "2", "--position", "1"): lambda model: model.lens(SENTENCE, top=2, position="1"),
    ("attribute", SENTENCE): lambda model: model.attribute(SENTENCE),
    ("ablate", SENTENCE, "--at", "L0H1"): lambda model: model.ablate(SENTENCE, "L0H1"),
    ("ablate", SENTENCE, "--sweep", "ffn"): lambda model: model.ablate_sweep(SENTENCE, "ffn"),
    ("patch", SENTENCE, OTHER, "--answer", "the", "--versus", "cat"): (
        lambda model: model.patch_sweep(SENTENCE, OTHER, answer="the", versus="cat")
    ),
    ("patch", SENTENCE, OTHER, "--answer", "the", "--versus", "cat", "--at", "L0.ffn"): (
        lambda model: model.patch(SENTENCE, OTHER, "L0.ffn", answer="the", versus="cat")
    ),
    ("heads", "--count", "2", "--length", "4", "--by", "entropy-share", "--top", "3"): (
        lambda model: model.heads(count=2, length=4, by="entropy-share", top=3)
    ),
    ("weights",): lambda model: model.weights(),
    ("weights", "L1H0", "--top", "2"): lambda model: model.head_weights("L1H0", top=2),
    ("weights", "--into", "L1H0"): lambda model: model.composition("L1H0", into=True),
    ("attention", "--rollout", SENTENCE): lambda model: model.rollout(SENTENCE),
    ("diff", SENTENCE, OTHER): lambda model: model.diff(SENTENCE, OTHER),
    ("blame", SENTENCE, "--budget", "1MB"): lambda model: model.budget(SENTENCE, 10**6),
    ("neighbours", "cat", "dog"): lambda model: model.neighbours(["cat", "dog"]),
    ("neighbours", SENTENCE, "--at", "L1.out"): lambda model: model.neighbours(text=SENTENCE, at="L1.out"),
    ("neighbours", "--texts", SENTENCE, OTHER, "--pooling", "mean"): lambda model: model.similar(
        SENTENCE, OTHER, pooling="mean"
    ),
    ("neurons", SENTENCE): lambda model: model.neurons(SENTENCE),
    ("explain", "L0H0.scores[1,0]", SENTENCE): lambda model: model.explain(SENTENCE, "L0H0.scores[1,0]"),
    ("grad", SENTENCE): lambda model: model.backward(SENTENCE),
    ("grad", SENTENCE, "--check", "2", "--integrated", "--by", "layer", "--derive", "L1.norm1", "--fail-on", "nan"): (
        lambda model: model.backward(
            SENTENCE, check=2, integrated=True, by="layer", derived=("L1.norm1",), fail_on=("nan",)
        )
    ),
    ("trace", SENTENCE): lambda model: model.traced(SENTENCE),
    ("trace", SENTENCE, "--at", "L0H1.weights", "--at", "L1.ffn[2]"): (
        lambda model: model.traced(SENTENCE, at=("L0H1.weights", "L1.ffn[2]"))
    ),
    ("attention", SENTENCE, "--head", "L0H1", "--top", "3"): (
        lambda model: model.attention(SENTENCE, heads=((0, 1),), top=3)
    ),
    ("tokens", SENTENCE): lambda model: model.tokens(SENTENCE),
    ("score", SENTENCE): lambda model: model.score(SENTENCE),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("words", REPORTS, ids=lambda words: f"{words[0]}-{len(words)}")
def test_a_report_is_the_json_of_its_command(
    tinytf: Tinytf, decoder: Path, opened: Model, words: tuple[str, ...]
) -> None:
    ran = tinytf(*words, "-m", decoder, "--json")
    assert ran.err == ""
    assert _alike(json.loads(ran.out), json.loads(to_json(REPORTS[words](opened).to_dict())))


def _alike(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same up to rounding, which follows how weights lie in memory."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-5, abs=1e-5)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("words", REPORTS, ids=lambda words: f"{words[0]}-{len(words)}")
def test_the_events_of_a_report_hold_all_of_its_data(opened: Model, words: tuple[str, ...]) -> None:
    """Put together again, they are the object: what is no part comes first, every item of a part once."""
    report = REPORTS[words](opened)
    head, *events = json.loads("[" + ",".join(to_json(event) for event in report.events()) + "]")
    data = json.loads(to_json(report.with_tokens(report.itemised())))
    parts = {name: data.pop(name, None) for name in report.EVENTS}
    assert head == {"type": data.pop("kind"), **data}
    expected = []
    for name, part in parts.items():
        items = part if isinstance(part, list) else [] if part is None else [part]
        expected += [{"type": report.EVENTS[name], **item} for item in items]
    assert events == expected


def test_what_a_model_amounts_to_is_a_report_too(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("info", decoder, "--json")
    assert json.loads(ran.out) == json.loads(to_json(info(str(decoder)).to_dict()))


def test_a_report_without_a_model_has_ids_and_no_names(opened: Model) -> None:
    data = replace(opened.attribute(SENTENCE), about=None).to_dict()
    assert "model" not in data
    assert data["target"]["token"] is None
    assert data["target"]["id"] == opened.attribute(SENTENCE).token


def test_a_catalogue_is_the_json_of_models(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("models", tmp_path, "--json")
    assert json.loads(ran.out) == json.loads(to_json(catalogue(tmp_path).to_dict()))


def test_an_export_is_its_json(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("export", "tiny", tmp_path / "tiny", "--to", "huggingface", "--json")
    again = load("tiny").export(tmp_path / "again").to_dict()
    assert (again["kind"], again["model"]) == ("export", "tiny")
    assert all((tmp_path / "again" / one["path"]).stat().st_size == one["bytes"] for one in again["files"])
    assert json.loads(ran.out.replace(str(tmp_path / "tiny"), str(tmp_path / "again"))) == again
