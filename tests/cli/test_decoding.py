"""Several texts, beams, a context that slides, what a token saw, the cache explained, 8 bits: on the command line."""

import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from driving import SENTENCE, Tinytf, is_a_clean_error, without_colour
from rich.console import Console
from rich.text import Text

from tinytf.generate.cache_comparison import RUNS
from tinytf.generate.runner import Runner
from tinytf.generate.samplers import Sampling
from tinytf.loading import Model, load
from tinytf.report import Report
from tinytf.steps.work import cache_bytes_per_token, work_per_token
from tinytf_cli.encodings import to_json
from tinytf_cli.paint.colour import ramp
from tinytf_cli.terminal import Terminal

WARM = ("--temperature", "1.3", "--seed", "3")


@pytest.fixture(scope="module")
def opened(decoder: Path) -> Model:
    """One for this file alone: generating moves the weights, and a product can differ in its last bit then."""
    return load(str(decoder), device="cpu")


def events_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_samples_are_texts_of_their_own_with_seeds_that_follow_each_other(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "8", *WARM)
    data = json.loads(tinytf(*given, "--n", "3", "--json").out)
    alone = [
        opened.generate(SENTENCE, max_tokens=8, sampling=Sampling(temperature=1.3), seed=seed) for seed in (3, 4, 5)
    ]
    assert [one["text"] for one in data["samples"]] == alone
    assert data["text"] == alone[0]
    assert sorted({step["sample"] for step in data["steps"]}) == [1, 2, 3]
    ran = tinytf(*given, "--n", "3")
    assert ran.out == "\n".join(tinytf(*given[:-1], str(seed)).out for seed in (3, 4, 5))
    shown = without_colour(tinytf(*given, "--n", "2", screen=True).out)
    assert "sample 1" in shown
    assert "sample 2" in shown
    assert "2 samples · temperature 1.3, seeds 3 to 4" in shown
    watched = without_colour(tinytf(*given, "--n", "2", "--watch").out)
    assert "sample 2, 1  " in watched


def test_samples_and_limits_draw_at_temperature_1_unless_told_otherwise(tinytf: Tinytf, decoder: Path) -> None:
    for options in (("--n", "2"), ("--top-k", "5"), ("--top-p", "0.9"), ("--min-p", "0.01")):
        data = json.loads(tinytf("generate", SENTENCE, "-m", decoder, *options, "--max-tokens", "3", "--json").out)
        assert data["sampling"]["temperature"] == 1.0, options
    greedy = ("generate", SENTENCE, "-m", decoder, "--temperature", "0", "--top-k", "5", "--json")
    assert json.loads(tinytf(*greedy).out)["sampling"]["temperature"] == 0.0


def test_beams_give_the_best_hypotheses_best_first(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--beams", "4", "--max-tokens", "6")
    data = json.loads(tinytf(*given, "--n", "3", "--json").out)
    *_, last = opened.beams(SENTENCE, beams=4, max_tokens=6)
    assert [tuple(one["ids"]) for one in data["hypotheses"]] == [one.ids for one in last.finished[:3]]
    assert [one["score"] for one in data["hypotheses"]] == sorted(
        (o["score"] for o in data["hypotheses"]), reverse=True
    )
    for one in data["hypotheses"]:
        ids = opened.encode(SENTENCE).ids + one["ids"]
        with torch.no_grad():
            every = opened.transformer(torch.tensor([ids]))[0].log_softmax(-1)
        total = sum(float(every[place - 1, ids[place]]) for place in range(len(ids) - len(one["ids"]), len(ids)))
        assert one["log_probability"] == pytest.approx(total, abs=1e-4)
    assert (data["kind"], data["text"]) == ("beam_search", data["hypotheses"][0]["text"])
    first, *steps, end = events_of(tinytf(*given, "--format", "ndjson").out)
    assert (first["type"], end["text"], len(steps)) == ("beam_search", data["text"], len(data["steps"]))
    assert tinytf(*given).out.rstrip("\n") == data["text"] or not data["text"].isprintable()
    watched = tinytf(*given, "--watch").out
    assert watched.count("goes on") >= 4 * 5
    assert "4 beams, length penalty 1" in watched
    assert "score" in without_colour(tinytf(*given, screen=True).out)


def test_a_context_that_slides_goes_on_and_says_so(tinytf: Tinytf, decoder: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "100", "--on-overflow", "slide")
    ran = tinytf(*given, "--json")
    data = json.loads(ran.out)
    assert (len(data["steps"]), data["ended"]) == (100, "max tokens")
    dropped = [step["dropped"] for step in data["steps"]]
    assert dropped == sorted(dropped)
    assert dropped[-1] > 0
    assert f"the first {dropped[-1]:,} tokens were dropped" in ran.err
    assert ran.err == tinytf(*given).err
    assert tinytf(*given).out == tinytf(*given, "--no-cache").out
    assert "no longer seen" in tinytf(*given, "--watch").out


def test_watching_shows_what_every_token_saw(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "3", "--watch")
    data = json.loads(tinytf(*given, "--json").out)
    trace = opened.trace(SENTENCE)
    mean = [trace[f"L{layer}.weights"][:, -1].mean(0).tolist() for layer in range(2)]
    assert data["steps"][0]["attention"] == [pytest.approx(row, abs=1e-5) for row in mean]
    assert [len(step["attention"][0]) for step in data["steps"]] == [len(trace.tokens) + extra for extra in range(3)]
    assert "saw: attention, mean of all 4 heads" in tinytf(*given).out
    one = json.loads(tinytf(*given, "--json", "--head", "L1H0").out)["steps"][0]["attention"]
    assert one == [pytest.approx(trace["L1H0.weights"][-1].tolist(), abs=1e-5)]
    assert "saw: attention, L1H0" in tinytf(*given, "--head", "L1H0").out
    layer = json.loads(tinytf(*given, "--json", "--head", "L1").out)["steps"][0]["attention"]
    assert layer == [pytest.approx(mean[1], abs=1e-5)]
    assert "saw: attention, mean of the 2 heads of L1" in tinytf(*given, "--head", "L1").out
    assert "attention" not in json.loads(tinytf(*given[:-1], "--json").out)["steps"][0]


@pytest.mark.parametrize("prompt", [SENTENCE, SENTENCE * 2], ids=["short", "long"])
def test_what_a_token_saw_is_the_text_in_colours_with_its_largest_shares(
    tinytf: Tinytf, decoder: Path, opened: Model, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text of more than 24 tokens the beginning is one number, unless a share of it is among the four largest."""
    trace = opened.trace(prompt)
    shares = np.mean([trace[f"L{layer}.weights"][:, -1].mean(0).numpy() for layer in range(2)], axis=0)
    names = [token.shown for token in trace.tokens]
    largest = sorted(range(len(names)), key=lambda place: -shares[place])[:4]
    kept = [place for place in range(len(names)) if place in largest or place >= len(names) - 24]
    given = ("generate", prompt, "-m", decoder, "--max-tokens", "1", "--watch", "--width", "1000")
    (line,) = [line for line in tinytf(*given).lines if line.startswith(f"  {names[-1]} saw  ")]
    _, *shown = line.split("  ")[1:]
    told = [word for word in shown if not word.startswith("…")]
    assert told == [f"{names[place]} {shares[place]:.2f}" if place in largest else names[place] for place in kept]
    hidden = sum(float(word.removeprefix("… ")) for word in shown if word.startswith("…"))
    assert hidden == pytest.approx(1 - sum(shares[kept]), abs=0.02)
    monkeypatch.setenv("COLORTERM", "truecolor")
    coloured = tinytf(*given, "--color", "always", "--theme", "dark").lines
    painted = Text.from_ansi(next(line for line in coloured if " saw  " in without_colour(line)))
    ground = painted.get_style_at_offset(Console(), painted.plain.rindex(told[-1])).bgcolor
    colour = ramp("unit", Terminal(depth="truecolor"))[round(255 * float(shares[-1]))]
    assert ground is not None
    assert ground.get_truecolor() == colour.get_truecolor()


def test_the_cache_is_explained_with_times_and_the_counts_of_the_formulas(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "20", "--explain-cache")
    ran = tinytf(*given, "--json")
    assert (ran.status, ran.err) == (0, "")
    data = json.loads(ran.out)
    config, prompt = opened.config, len(opened.encode(SENTENCE).ids)
    assert [step["tokens"] for step in data["steps"]] == list(range(prompt, prompt + 20))
    assert [step["reused"] for step in data["steps"]] == [0, *range(prompt, prompt + 19)]
    assert all(step[way]["seconds"] > 0 for step in data["steps"] for way in ("with_cache", "without_cache"))
    assert max(step["apart"] for step in data["steps"]) < 1e-4
    assert [step["id"] for step in data["steps"]] == [step.id for step in opened.stream(SENTENCE, max_tokens=20)]
    last, t = data["steps"][-1], prompt + 19
    one = work_per_token(config, t)
    assert last["with_cache"]["multiply_adds"] == one.total // 2
    assert last["without_cache"]["multiply_adds"] == (t * (one.total - one.head) + one.head) // 2
    assert last["without_cache"]["attention"] == 2 * 2 * t * t * 16
    assert last["with_cache"]["attention"] == 2 * 2 * t * 16
    assert last["without_cache"]["keys_values"] == 2 * t * 16 * 2 * 16
    assert data["bytes_per_token"] == cache_bytes_per_token(config, 4)
    assert data["steps"][0]["with_cache"]["multiply_adds"] == data["steps"][0]["without_cache"]["multiply_adds"]
    text = tinytf(*given).out
    assert "checked: the logits with the cache are those without, off by" in text
    assert data["check"]["holds"]
    assert "8 of 20; " in text
    rows = [line.split("█")[0].rpartition("  ")[2] + "█" for line in text.splitlines() if line.count("█") == 1]
    assert f"{t - 1} + 1 {'▒' * 13}█" in rows
    first, *steps, end = events_of(tinytf(*given, "--format", "ndjson").out)
    assert (first["runs"], len(steps), end["type"]) == (3, 20, "end")


def test_the_cache_is_explained_with_the_sums_of_all_steps_first(tinytf: Tinytf, decoder: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "20", "--explain-cache")
    data = json.loads(tinytf(*given, "--json").out)
    for way in ("with_cache", "without_cache"):
        for name, total in data[way].items():
            assert total == pytest.approx(sum(step[way][name] for step in data["steps"]))
    assert data["cache_bytes"] == data["bytes_per_token"] * data["steps"][-1]["tokens"]
    heading, _, work, *_ = tinytf(*given).out.split("what the cache saves")[1].splitlines()
    assert "20 tokens after a prompt of" in heading
    ratio = data["without_cache"]["multiply_adds"] / data["with_cache"]["multiply_adds"]
    assert work.split()[0] == "multiply-adds"
    assert work.endswith(f"{ratio:.1f} ×")


def test_the_source_is_in_the_counts_of_the_cache_and_every_formula_gives_its_figure(tinytf: Tinytf) -> None:
    given = ("generate", "the ninth of March 2011", "-m", "tiny-translator", "--max-tokens", "9", "--explain-cache")
    data = json.loads(tinytf(*given, "--json").out)
    assert (data["source"], data["source_bytes"]) == (10, 10 * data["bytes_per_token"])
    assert data["cache_bytes"] == (10 + 9) * data["bytes_per_token"]
    text = tinytf(*given).out
    legend = next(line for line in text.splitlines() if "d_model C = " in line)
    letters = dict(re.findall(r"\b([LCHGDS]) = (\d+)", legend)) | {"t": "9"}
    formulas = [
        cell.strip().split(" = ") for line in text.splitlines() for cell in re.split("  +", line) if "·" in cell
    ]
    formulas = [pair for pair in formulas if len(pair) == 2]
    assert len(formulas) == 7
    for formula, figure in formulas:
        value = eval(re.sub("[LCHGDSt]", lambda found: letters[found[0]], formula.replace("·", "*")))
        assert value == int(figure.replace(",", "")), formula


def test_the_least_time_of_three_runs_counts(opened: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from tinytf.generate import cache_comparison as compared

    seconds = iter([5, 9, 3, 8, 4, 7, 2, 6, 1, 5, 9, 9])  # with and without in turns; the second step in reverse
    ticks = iter([tick for number, took in enumerate(seconds) for tick in (100 * number, 100 * number + took)])
    monkeypatch.setattr(compared, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    steps = list(compared.cached_steps(opened.transformer, [1, 2, 3], max_tokens=2))
    assert [(step.with_cache, step.without_cache) for step in steps] == [(3, 7), (5, 1)]


@pytest.mark.parametrize("text", ["", " "], ids=["empty", "a space"])
def test_an_empty_prompt_begins_with_the_start_token(tinytf: Tinytf, decoder: Path, opened: Model, text: str) -> None:
    ran = tinytf("generate", text, "-m", decoder, "--max-tokens", "4", "--json")
    if text:
        assert is_a_clean_error(ran)
        return
    start = opened.tokenizer.start()
    assert start is not None
    data = json.loads(ran.out)
    assert [token["id"] for token in data["prompt"]["tokens"]] == start.ids
    assert len(data["steps"]) == 4


def test_eight_bits_are_never_silent(tinytf: Tinytf, decoder: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "12", "--quantize", "int8")
    ran = tinytf(*given)
    assert ran.status == 0
    assert "int8" in ran.err
    assert "tokens/s" in ran.err
    assert "bits per token" in ran.err
    decoding = json.loads(tinytf(*given, "--json").out)["decoding"]
    assert (decoding["int8"], decoding["compiled"]) == (True, False)
    cost = decoding["int8_cost"]
    assert 0 < abs(cost["int8_loss"] - cost["loss"]) < 0.1
    scored = json.loads(tinytf("score", SENTENCE, "-m", decoder, "--quantize", "int8", "--json").out)
    assert scored["int8_cost"]["loss"] == pytest.approx(scored["loss"], abs=1e-6)
    cost, exact = scored["int8_cost"], scored["int8_cost"]["loss"]
    bits = [value / math.log(2) for value in (cost["int8_loss"] - exact, exact, cost["int8_loss"])]
    said = "int8 costs {:+.4f} bits per token on {} tokens ({:.4f} becomes {:.4f};"
    out = tinytf("score", SENTENCE, "-m", decoder, "--quantize", "int8", "--width", "200").out
    assert said.format(bits[0], cost["tokens"], *bits[1:]) in out


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling takes a C++ compiler")
def test_compiled_text_is_the_same_text(
    backend: str, tinytf: Tinytf, characters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend=backend))  # the graph alone is quick
    given = ("generate", SENTENCE, "-m", characters, "--max-tokens", "6")
    ran = tinytf(*given, "--compile")
    assert (ran.status, ran.out) == (0, tinytf(*given).out)
    assert "compiled" in ran.err


def test_stop_strings_and_chunks_arrive(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--json")
    whole = json.loads(tinytf(*given).out)["text"]
    assert json.loads(tinytf(*given, "--prefill-chunk", "2").out)["text"] == whole
    from tinytf_cli.commands.generate import _unescaped

    assert [_unescaped(text) for text in (r"\n", r"a\\n", r"\t.", r"\d", "\\")] == ["\n", r"a\n", "\t.", r"\d", "\\"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--n", "0"), "0 is not 1 or more"),
        (("--n", "2", "--temperature", "0"), "2 greedy texts are all the same"),
        (("--beams", "0"), "0 is not 1 or more"),
        (("--beams", "2", "--n", "3"), "3 texts are more than 2 beams"),
        (("--beams", "2", "--temperature", "1"), "draws nothing"),
        (("--beams", "2", "--top-k", "4"), "draws nothing"),
        (("--beams", "2", "--stop", "x"), "not at --stop"),
        (("--beams", "2", "--on-overflow", "slide"), "older half"),
        (("--beams", "2", "--length-penalty", "nan"), "nan is not from -1000 to 1000"),
        (("--head", "L9"), "layer 9"),
        (("--head", "L0H0.q"), "not one head"),
        (("--head", "L0-1"), "not one head"),
        (("--head", "L0", "--no-cache"), "in the cache"),
        (("--compile", "--no-cache"), "with a cache"),
        (("--quantize", "int8", "--no-cache"), "with a cache"),
        (("--quantize", "int4"), "int4"),
        (("--prefill-chunk", "0"), "0"),
        (("--on-overflow", "roll"), "roll"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_said_in_a_line(tinytf: Tinytf, decoder: Path, options: tuple[str, ...], said: str) -> None:
    ran = tinytf("generate", SENTENCE, "-m", decoder, *options)
    assert is_a_clean_error(ran)
    assert said in ran.err


@pytest.mark.parametrize(
    "options",
    [
        ("--temperature", "1e-45"), ("--temperature", "1e-320"), ("--temperature", "1", "--top-p", "1e-300"),
        ("--temperature", "1e30"), ("--temperature", "1", "--min-p", "1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_extreme_settings_are_drawn_from_like_any_other(
    tinytf: Tinytf, decoder: Path, options: tuple[str, ...]
) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "5", "--json")
    ran = tinytf(*given, *options)
    assert (ran.status, ran.err) == (0, "")
    if options != ("--temperature", "1e30"):
        assert json.loads(ran.out)["text"] == json.loads(tinytf(*given).out)["text"]


def test_what_would_not_fit_is_refused_before_it_begins(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinytf.model import cache

    monkeypatch.setattr(cache, "UNASKED", 0)
    monkeypatch.setattr(cache, "free_bytes", lambda device: 100_000)
    for options in (("--beams", "90"), ("--n", "3000")):
        ran = tinytf("generate", SENTENCE, "-m", decoder, *options)
        assert (ran.status, ran.out) == (1, ""), options
        assert "takes" in ran.err
        assert "are free" in ran.err
    lines = "\n".join(["The cat sat"] * 30)  # one cache after the other
    assert tinytf("generate", lines, "--lines", "-m", decoder, "--max-tokens", "2").status == 0


def test_the_tree_of_beams_has_every_end_and_what_each_dropped_branch_lost_to(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--beams", "3", "--max-tokens", "4")
    tree = tinytf(*given, "--watch").out.partition("\ntree ")[2].partition("\n\n")[0].splitlines()[2:]
    steps = list(opened.beams(SENTENCE, beams=3, max_tokens=4))
    dropped = [(step, each) for step in steps for each in step.pruned]
    assert dropped
    assert len(tree) == len(steps[-1].finished) + len(dropped)
    assert [row.split()[-1] for row in tree if "dropped" not in row] == ["best", "outscored", "outscored"]
    for step, each in dropped:
        piece = opened.tokenizer.shown(each.ids[-1])
        least = min(one.score for one in step.running or step.finished)
        told = f"{each.score:.3f}  dropped in step {step.number}: with {piece}, the last kept {least:.3f}"
        assert any(row.endswith(told) for row in tree)


def test_beams_in_eight_bits_say_what_that_costs(tinytf: Tinytf, decoder: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--beams", "2", "--max-tokens", "4", "--quantize", "int8")
    assert "int8 costs" in tinytf(*given).err
    assert json.loads(tinytf(*given, "--json").out)["int8_cost"]["tokens"] > 4


def test_logits_that_the_cache_changes_by_more_than_rounding_fail_the_check(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "3", "--explain-cache")
    limit = json.loads(tinytf(*given, "--json").out)["check"]["allowed"]
    right = Runner.go_on

    def wrong(runner: Runner, rows: list[int], ids: list[int]) -> torch.Tensor:
        found = right(runner, rows, ids)
        return found if runner.cache is None else found + 2 * limit

    monkeypatch.setattr(Runner, "go_on", wrong)
    ran = tinytf(*given)
    assert ran.status == 1
    assert "check failed: it should be that the logits with the cache are those without" in ran.out


def test_hypotheses_are_told_apart_by_their_last_tokens(tinytf: Tinytf, decoder: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--beams", "3", "--max-tokens", "20", "--watch", "--width", "80")
    out = tinytf(*given).out
    assert "cut off" in out
    assert "…" in out
    last = [line.split("…")[-1] for line in out.splitlines() if "goes on" in line][-3:]
    assert len(set(last)) == 3


@pytest.mark.parametrize(
    "options", [("--beams", "2"), ("--head", "L0"), ("--no-cache",), ("--quantize", "int8"), ("--n", "2"), ("--watch",)]
)
def test_explaining_the_cache_takes_no_other_settings(tinytf: Tinytf, decoder: Path, options: tuple[str, ...]) -> None:
    ran = tinytf("generate", SENTENCE, "-m", decoder, "--explain-cache", *options)
    assert is_a_clean_error(ran)
    assert options[0] in ran.err


def test_control_c_leaves_what_was_measured(tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    genuine, calls = Runner.go_on, []

    def interrupted(self: Runner, *arguments: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4 * 2 * RUNS + 1:
            signal.raise_signal(signal.SIGINT)
        return genuine(self, *arguments)

    for options in ((), ("--json",), ("--format", "ndjson")):
        monkeypatch.setattr(Runner, "go_on", interrupted)
        calls.clear()
        ran = tinytf("generate", SENTENCE, "-m", decoder, "--explain-cache", *options)
        assert ran.status == 130
        assert ran.out.strip()
        if options == ("--json",):
            assert len(json.loads(ran.out)["steps"]) == 5


def test_watching_a_head_needs_no_other_word(tinytf: Tinytf, decoder: Path) -> None:
    assert (
        "saw: attention, L1H1" in tinytf("generate", SENTENCE, "-m", decoder, "--max-tokens", "2", "--head", "L1H1").out
    )
    assert is_a_clean_error(tinytf("generate", SENTENCE, "-m", decoder, "--head", ""))


def test_a_combining_mark_stands_on_the_letter_before_in_whatever_pieces_it_comes() -> None:
    from tinytf_cli.views.continuation import safe_piece

    text = "e\u0301\u0301 n\u0303\u0323x"
    for cut in range(len(text)):
        assert safe_piece("", text[:cut]) + safe_piece(text[:cut], text[cut:]) == safe_piece("", text)


@pytest.mark.parametrize("options", [(), ("--beams", "2"), ("--n", "2"), ("--watch",)], ids=str)
def test_fast_decoding_that_is_wrong_gives_way_and_one_line_says_so(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    from tinytf.steps.one_token import Kernels, NumpyKernels

    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "6", "--seed", "3", *options)
    right = tinytf(*given)
    data = json.loads(tinytf(*given, "--json").out)
    assert (right.err, "note" in data) == ("", False)
    for kernels in (NumpyKernels, Kernels):
        genuine = kernels.attend
        monkeypatch.setattr(kernels, "attend", lambda *given, genuine=genuine: 3 * genuine(*given))
    ran = tinytf(*given)
    assert (ran.status, ran.out) == (0, right.out)
    assert ran.err.startswith("tinytf: fast decoding had a relative error of ")
    assert ran.err.count("\n") == 1
    broken = json.loads(tinytf(*given, "--json").out)
    assert ran.err == f"tinytf: {broken['note']}\n"
    assert broken["text"] == data["text"]
    assert broken["note"] == json.loads(tinytf(*given, "--format", "ndjson").out.splitlines()[-1])["note"]


CONTINUED: dict[tuple[str, ...], Callable[[Model], Report]] = {
    (): lambda model: model.generation(SENTENCE, max_tokens=3, top=5),
    ("--n", "2", "--seed", "4"): lambda model: model.generation(
        SENTENCE, max_tokens=3, top=5, samples=2, seed=4, sampling=Sampling(temperature=1.0)
    ),
    ("--beams", "3", "--n", "3"): lambda model: model.beam_search(SENTENCE, max_tokens=3, beams=3),
    ("--explain-cache",): lambda model: model.compare_cache(SENTENCE, max_tokens=3),
}


@pytest.mark.parametrize("options", CONTINUED, ids=str)
def test_what_generate_prints_is_a_report_of_the_library(
    tinytf: Tinytf, decoder: Path, opened: Model, options: tuple[str, ...]
) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "3", *options)
    report = CONTINUED[options](opened)
    assert untimed(json.loads(tinytf(*given, "--json").out)) == untimed(json.loads(to_json(report.to_dict())))
    events = [json.loads(to_json(event)) for event in report.events()]
    assert untimed(events_of(tinytf(*given, "--format", "ndjson").out)) == untimed(events)


def untimed(data: Any) -> Any:
    """The data without the seconds that were measured."""
    if isinstance(data, dict):
        return {name: untimed(value) for name, value in data.items() if name != "seconds"}
    return [untimed(value) for value in data] if isinstance(data, list) else data
