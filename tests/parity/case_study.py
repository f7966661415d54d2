"""The figures of docs/case-study.md, recomputed: ``python tests/parity/case_study.py [smollm2|gemma3]``.

Runs the commands of the page on the models in the folder that TINYTF_REAL_WEIGHTS names, and compares what they print
with the page, within 2 % of a figure or 0.01. With ``--write`` it puts new figures there, with ``--draw`` new pictures
of SmolLM2. Takes five minutes a model.
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytf_cli.main import run

ROOT = Path(__file__).parents[2]
PAGE, PICTURES = ROOT / "docs" / "case-study.md", ROOT / "samples" / "pictures"
PAIRS = "ioi.jsonl"
UNSEEN = "When Anna and Peter met at the station, Peter gave a map to"
Data = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model, the head that is followed, and the step that is steered."""

    name: str
    pattern: str
    head: str
    step: str
    curve: str
    strengths: tuple[int, int]

    @property
    def path(self) -> Path:
        return next(Path(os.environ["TINYTF_REAL_WEIGHTS"]).rglob(self.pattern))


SUBJECTS = {
    "smollm2": Subject("SmolLM2-135M", "SmolLM2*.gguf", "L23H3", "L20.out", "-4:4:1", (-2, 0)),
    "gemma3": Subject("Gemma 3 270M", "gemma-3-270m.gguf", "L15H3", "L10.out", "-12:12:3", (-6, 0)),
}


def asked(*words: str) -> Data:
    """The JSON that a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        status = run([*words, "--json"])
    if status:
        raise SystemExit(f"tinytf {' '.join(words)}: status {status}")
    data: Data = json.loads(printed.getvalue())
    return data


def drawn(name: str, *words: str) -> None:
    """Write what a command draws as a picture."""
    with contextlib.redirect_stderr(io.StringIO()):
        status = run([*words, "--width", "100", "--theme", "dark", "-o", str(PICTURES / f"{name}.svg")])
    if status:
        raise SystemExit(f"{name}: status {status}")


def prepared(key: str) -> tuple[str, ...]:
    """Make the pairs in this folder, beside a link to the model; return the options that name it."""
    subject = SUBJECTS[key]
    Path(f"{key}.gguf").symlink_to(subject.path)
    model = ("-m", f"{key}.gguf")
    with contextlib.redirect_stderr(io.StringIO()):
        assert run(["pairs", "ioi", "-n", "20", "--seed", "0", *model, "-o", PAIRS]) == 0
        assert run(["pairs", "ioi", "-n", "60", "--seed", "1", *model, "-o", "more.jsonl"]) == 0
    rows = [row for row in Path("more.jsonl").read_text("utf-8").splitlines() if '"ABBA"' in row]
    Path("abba.jsonl").write_text("\n".join(rows), "utf-8")
    return model


def pictures(key: str, model: tuple[str, ...]) -> None:
    """Draw the three pictures of the page."""
    estimate = ("patch", "--pairs", PAIRS, "--sweep", "heads", *model, "--estimate", "gradient")
    drawn(f"case-{key}-heads", *estimate)
    drawn(f"case-{key}-circuit", "circuit", "--pairs", PAIRS, *model, "--left-out", "1")
    drawn(f"case-{key}-steering", *curve_of(key, model))


def curve_of(key: str, model: tuple[str, ...]) -> tuple[str, ...]:
    """The command that steers a sentence that was not among the pairs."""
    steer = ("steer", "abba.jsonl", UNSEEN, *model, "--at", SUBJECTS[key].step)
    return (*steer, f"--curve={SUBJECTS[key].curve}", "--ask", "Anna", "--ask", "Peter")


def figures(key: str, model: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each figure of a model: what it is, and the number in words."""
    subject = SUBJECTS[key]
    first = json.loads(Path(PAIRS).read_text("utf-8").splitlines()[0])
    scored = asked("score", "--pairs", PAIRS, *model)
    yield "answered right", f"{scored['right']:.0%}"
    for text in ("clean", "corrupt"):
        yield f"lead, {text}", interval(scored["lead"][text], "+.2f")

    sweep = ("patch", "--pairs", PAIRS, "--sweep", "heads", *model)
    estimated = asked(*sweep, "--estimate", "gradient", "--beside", "exact")
    heads = {row["name"]: row for row in estimated["rows"]}
    yield "head of the largest estimate", estimated["by"]
    yield "its estimated share of the lead", interval(heads[estimated["by"]]["estimated"], "+.3f")
    yield f"{subject.head}, patched exactly", f"{heads[subject.head]['exact']['value']:+.3f}"
    yield "rank correlation of all heads", f"{estimated['agreement']['rank_correlation']:.3f}"

    kept = "circuit.json"
    with contextlib.redirect_stderr(io.StringIO()):
        assert run(["circuit", "--pairs", PAIRS, *model, "-o", kept]) == 0
    circuit = json.loads(Path(kept).read_text("utf-8"))
    yield "edges of the circuit", f"{circuit['edges']:,} of {circuit['of']:,}"
    yield "its faithfulness", interval(circuit["faithfulness"], ".3f")
    yield "all but the circuit", interval(circuit["complement"], "+.3f")

    texts = (first["clean"], first["corrupt"], "--answer", first["answer"], "--versus", first["versus"])
    direct = asked("patch", *texts, *model, "--from", subject.head, "--to", "logits")
    yield f"{subject.head} → logits, directly", f"{direct['recovered']:+.3f}"
    paths = asked("patch", *texts, *model, "--to", f"{subject.head}.q", "--sweep", "from")
    most = max(paths["ends"], key=lambda end: abs(end["recovered"] or 0))
    yield f"strongest path into {subject.head}.q", f"{most['name']}, {most['recovered']:+.3f}"

    steered = asked(*curve_of(key, model))
    for strength in subject.strengths:
        dose = next(dose for dose in steered["doses"] if dose["strength"] == strength)
        yield f"p(Anna), p(Peter) at strength {strength}", shares(dose)


def interval(estimate: Mapping[str, float], form: str) -> str:
    return f"{estimate['value']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]"


def shares(dose: Mapping[str, Any]) -> str:
    return ", ".join(f"{asked_token['probability']:.3f}" for asked_token in dose["asked"])


def table(keys: list[str], *, draw: bool) -> dict[str, dict[str, str]]:
    """The figures of each model by what they are, or with ``draw`` its pictures alone."""
    found: dict[str, dict[str, str]] = {}
    for key in keys:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            model = prepared(key)
            if draw:
                pictures(key, model)
            else:
                found[key] = dict(figures(key, model))
    return found


def agree(one: str, other: str) -> bool:
    """Whether two cells say the same, but for 2 % or 0.01 of each number."""
    numbers = re.compile(r"[+-]?\d[\d,]*\.?\d*")
    pairs = [[float(number.replace(",", "")) for number in numbers.findall(cell)] for cell in (one, other)]
    if numbers.sub("#", one) != numbers.sub("#", other) or len(pairs[0]) != len(pairs[1]):
        return False
    return all(abs(a - b) <= max(0.01, 0.02 * abs(a)) for a, b in zip(*pairs, strict=True))


def written(page: str, key: str) -> dict[str, str]:
    """The figures that the page has of a model."""
    match = re.search(rf"<!-- {key} -->\n(.*?)\n<!-- /{key} -->", page, re.DOTALL)
    assert match, f"the page has no figures of {key}"
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in match[1].splitlines()[2:]]
    return {row[0]: row[1] for row in rows}


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if word in SUBJECTS] or list(SUBJECTS)
    write, page = "--write" in sys.argv, PAGE.read_text("utf-8")
    wrong = 0
    if "--draw" in sys.argv:
        chosen = ["smollm2"]
    for key, found in table(chosen, draw="--draw" in sys.argv).items():
        if write:
            lines = [f"| {what} | {cell} |" for what, cell in found.items()]
            rows = "\n".join(["| what | figure |", "|---|---|", *lines])
            page = re.sub(rf"(<!-- {key} -->\n).*?(\n<!-- /{key} -->)", rf"\g<1>{rows}\g<2>", page, flags=re.DOTALL)
            PAGE.write_text(page, "utf-8")
            continue
        stated = written(page, key)
        for what, cell in found.items():
            holds = agree(stated.get(what, ""), cell)
            wrong += not holds
            print(f"{'ok   ' if holds else 'WRONG'} {SUBJECTS[key].name}: {what}: {cell} (page: {stated.get(what)})")
    raise SystemExit(wrong > 0)
