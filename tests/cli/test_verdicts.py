"""A verdict's sentence, table, JSON and exit status say one thing: of equal, rounded, wrong and lost numbers.

Every report that judges two runs is asked here; ``test_every_report_with_a_verdict_is_asked`` names a new one.
"""

import json
import math
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from driving import Ran, Tinytf
from safetensors.torch import load_file, save_file

import tinytf as library
from tinytf.report import Report

TEXT = "The cat sat on the mat. The dog saw the cat"
SITUATIONS = {"agrees": 0, "rounds": 0, "differs": 1, "nan": 1, "infinite": 1, "one token": 1, "overflows": 1}
"""The situations, each with the exit status of a verdict."""
LOST = ("nan", "infinite", "one token", "overflows")
BAD = ("✗", "bug:", "check failed", "not certified", "fails", "not finite", "above", "steps differ")
"""The marks of a verdict that is not good."""
_BARE = re.compile(r"(?<![\w./-])[+-]?(nan|inf)(?![\w-])")
World = Callable[[str], Path]


@pytest.fixture(scope="module")
def other(decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The folder of a model that is to the ``decoder`` as a situation says."""
    folder = tmp_path_factory.mktemp("others")

    def made(situation: str) -> Path:
        place = folder / f"case-{list(SITUATIONS).index(situation)}"
        if not place.exists():
            shutil.copytree(decoder, place)
            file = place / "model.safetensors"
            weights = load_file(file)
            if situation == "rounds":
                weights = {key: x.bfloat16().float() for key, x in weights.items()}
            elif situation == "differs":
                weights = {key: 3 * x if "norm2" in key else x for key, x in weights.items()}
            elif situation == "one token":
                last = library.load(place, device="cpu").encode(TEXT).ids[-1]
                weights["embed.tokens.weight"][last, 0] = math.nan
            elif situation in LOST:
                weights["blocks.1.ffn.down.weight"][0, 0] = math.nan if situation == "nan" else -math.inf
            save_file(weights, file)
        return place

    return made


def _diff(situation: str, decoder: Path, other: World, *, floor: bool = False) -> list[str | Path]:
    words = ["--floor", "bf16"] if floor else ["--fail-over", "0.1"]
    if situation == "overflows":
        return ["diff", TEXT, "-m", _grown(decoder), "--versus-dtype", "float16", *words]
    return ["diff", TEXT, "-m", decoder, "--versus", other(situation), *words]


def _grown(decoder: Path) -> Path:
    """The model with a matrix so large that its numbers pass float16's largest."""
    place = decoder.parent / "grown"
    if not place.exists():
        shutil.copytree(decoder, place)
        weights = load_file(place / "model.safetensors")
        down = weights["blocks.1.ffn.down.weight"]
        down *= 1e4 / float(down.abs().max())
        weights["blocks.1.norm2.weight"] *= 1e3
        save_file(weights, place / "model.safetensors")
    return place


def _card(situation: str, decoder: Path, other: World) -> list[str | Path] | None:
    if situation == "one token":  # its text need not have the token
        return None
    card = ["--card", "--versus", decoder, "--top", "0", "--pieces", "1"]
    if situation == "overflows":
        return ["info", _grown(decoder), *card, "--dtype", "float16"]
    return ["info", other(situation), *card, "--fail-over", "0.01"]


def _same(situation: str, decoder: Path, other: World) -> list[str | Path] | None:
    if situation in ("rounds", "differs"):  # no folder of weights alone makes a text differ from itself
        return None
    if situation == "overflows":
        return ["same", TEXT, "-m", _grown(decoder), "--dtype", "float16"]
    return ["same", TEXT, "-m", decoder if situation == "agrees" else other(situation)]


def _logprobs(situation: str, decoder: Path, other: World) -> list[str | Path] | None:
    if situation == "overflows":
        return None
    model = library.load(decoder, device="cpu")
    ids = model.encode(TEXT * 2).ids
    exact = model.transformer(torch.tensor([ids]))[0, :-1].double().log_softmax(-1)
    rounded = model.transformer.bfloat16()(torch.tensor([ids]))[0, :-1].double().log_softmax(-1)
    of = {"agrees": exact, "rounds": rounded, "differs": (2 * exact).log_softmax(-1)}.get(situation, exact)
    rows = torch.tensor(ids[1:])[:, None]
    first, second = (log_p.gather(1, rows)[:, 0].tolist() for log_p in (exact, of))
    for at in {"nan": range(3, 9), "infinite": range(2), "one token": [5]}.get(situation, ()):
        second[at] = -math.inf if situation == "infinite" else math.nan
    files = [decoder.parent / f"case-{list(SITUATIONS).index(situation)}-{name}.jsonl" for name in "ab"]
    for file, log in zip(files, (first, second), strict=True):
        file.write_text(json.dumps({"ids": ids, "logprobs": log}) + "\n", "utf-8")
    return ["diff", "--logprobs", *files, "-m", decoder, "--floor", "bf16"]


ASKED: dict[str, Callable[[str, Path, World], list[str | Path] | None]] = {
    "diff": _diff,
    "diff, with a floor": lambda *given: _diff(*given, floor=True),
    "card": _card,
    "same": _same,
    "diff_logprobs": _logprobs,
}
ELSEWHERE = {
    "check": "tests/check/test_checked.py",
    "certify": "tests/certification/test_certify.py",
    "diff_printed": "tests/compare/dumps/test_printed.py",
    "diff_modules": "tests/through/test_reading.py",
}
"""Verdicts on what takes a file of code, a log or another library: the tests that ask these."""
OWN = {
    "attribute", "code", "doctor", "explain", "grad", "info", "lens", "paper", "rollout", "state", "tokenizers",
    "trace", "verify",
}  # fmt: skip
"""Reports whose verdict is on tinytf's own arithmetic, on a claim of the user's or on ids, not on two runs."""


def _judging() -> Iterator[type[Report]]:
    """Every kind of report that says whether something holds by its own rule."""
    for module in pkgutil.walk_packages(library.__path__, "tinytf."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    waiting = [Report]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind is not Report and "holds" in vars(kind) and kind.__module__.startswith("tinytf."):
            yield kind


def test_every_report_with_a_verdict_is_asked() -> None:
    judging = list(_judging())
    kinds = {kind.KIND for kind in judging if hasattr(kind, "KIND")} | {"certify"}  # by its checks
    assert kinds == {name.partition(",")[0] for name in ASKED} | ELSEWHERE.keys() | OWN
    silent = [kind.KIND for kind in judging if hasattr(kind, "KIND") and not kind.ALWAYS_SAID]
    assert set(silent) <= OWN, "a verdict that fails has a sentence too"
    for file in ELSEWHERE.values():
        assert "not_finite" in (Path(__file__).parents[2] / file).read_text("utf-8"), file


def _no_literal(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


def _read(ran: Ran) -> dict[str, object]:
    data: dict[str, object] = json.loads(ran.out, parse_constant=_no_literal)
    return data


def _holds(data: dict[str, object]) -> object:
    """What a report's data says of the verdict, where it says it."""
    check = data.get("check")
    return data.get("holds", check.get("holds") if isinstance(check, dict) else None)


@pytest.mark.share(8)
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", ASKED)
def test_the_sentence_the_marks_the_data_and_the_status_agree(
    name: str, situation: str, decoder: Path, other: World, tinytf: Tinytf
) -> None:
    words = ASKED[name](situation, decoder, other)
    if words is None:
        pytest.skip("no such situation")
    shown, plain = tinytf(*words, "--device", "cpu", "--width", "300"), tinytf(*words, "--device", "cpu", "--json")
    assert shown.err == plain.err == ""
    status, data = SITUATIONS[situation], _read(plain)
    assert (shown.status, plain.status) == (status, status), shown.out
    assert _holds(data) in (None, status == 0)
    sentence = str(data["sentence"])
    assert shown.lines[0] == sentence
    assert bool([mark for mark in BAD if mark in shown.out]) is bool(status), shown.out
    assert ("not finite" in sentence.lower()) is (situation in LOST), sentence
    assert _BARE.findall(shown.out) == []
    if situation in LOST:
        assert data.get("not_finite", "Not finite" in sentence)
    if situation == "overflows":
        assert "65,504" in sentence
    floor = data.get("floor")
    if isinstance(floor, dict) and situation in ("rounds", "differs"):
        bug = next((step["name"] for step in floor["steps"] if step["error"] > 6 * step["own"]), None)
        assert sentence.startswith(f"No rounding: {bug}" if bug else "Rounding"), sentence
        assert (f"bug: {bug}" if bug else "rounding: ") in shown.out
