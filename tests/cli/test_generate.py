"""Generated text and scores on the command line: alone in a pipe, as it is made, in every form; safe to look at."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from driving import SENTENCE, Stream, Tinytf, is_a_clean_error, streams, without_colour

from tinytf.generate.samplers import Sampling
from tinytf.loading import Model, load
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.main import run

WARM = ("--temperature", "1.3", "--top-p", "0.95", "--seed", "3")


@pytest.fixture(scope="module")
def opened(decoder: Path) -> Model:
    """One for this file alone: generating moves the weights, and a product can differ in its last bit then."""
    return load(str(decoder), device="cpu")


def events_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_in_a_pipe_the_new_text_alone_is_on_stdout(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    ran = tinytf("generate", SENTENCE, "-m", decoder, "--max-tokens", "12")
    assert (ran.status, ran.err) == (0, "")
    text = opened.generate(SENTENCE, max_tokens=12)
    if text.isprintable():
        assert ran.out == text + "\n"
    assert SENTENCE not in ran.out
    assert len(ran.out) > 5


def test_fifty_greedy_tokens_are_the_default(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("generate", "The cat", "-m", decoder, "--json").out)
    assert len(data["steps"]) == 50
    assert (data["ended"], data["sampling"]["temperature"]) == ("max tokens", 0.0)
    assert all(step["rank"] == 1 for step in data["steps"])


def test_without_the_cache_the_text_is_the_same(tinytf: Tinytf, decoder: Path) -> None:
    for options in ((), WARM):
        cached = tinytf("generate", SENTENCE, "-m", decoder, *options)
        plain = tinytf("generate", SENTENCE, "-m", decoder, "--no-cache", *options)
        assert (cached.status, cached.data) == (0, plain.data)


def test_a_seed_gives_the_same_text_and_another_one_another(tinytf: Tinytf, decoder: Path) -> None:
    one, again, other = (
        tinytf("generate", SENTENCE, "-m", decoder, "--temperature", "2", "--seed", seed).data for seed in "112"
    )
    assert one == again != other


def test_every_form_has_the_same_steps(tinytf: Tinytf, decoder: Path, opened: Model, tmp_path: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "9", *WARM)
    data = json.loads(tinytf(*given, "--json").out)
    first, *steps, last = events_of(tinytf(*given, "--format", "ndjson").out)
    assert (first["type"], last["type"]) == ("generate", "end")
    assert [{k: v for k, v in step.items() if k != "type"} for step in steps] == data["steps"]
    assert last["text"] == data["text"] == "".join(step["text"] for step in data["steps"])
    expected = opened.stream(SENTENCE, max_tokens=9, sampling=Sampling(temperature=1.3, top_p=0.95), seed=3)
    assert [step["id"] for step in data["steps"]] == [step.id for step in expected]
    assert data["kind"] == "generate"
    assert [layer["used"] for layer in data["cache"]] == [len(data["prompt"]["tokens"]) + 8] * 2
    for name in ("a.json", "a.ndjson", "a.txt", "a.html", "a.svg"):
        assert tinytf(*given, "-o", tmp_path / name).status == 0
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == data
    assert (tmp_path / "a.txt").read_bytes() == tinytf(*given).data


def test_a_stop_string_ends_the_text_before_it(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    whole = opened.generate(SENTENCE)
    stop = whole[8:10]
    data = json.loads(tinytf("generate", SENTENCE, "-m", decoder, "--stop", "zzzz", "--stop", stop, "--json").out)
    assert (data["text"], data["ended"]) == (whole[: whole.index(stop)], "stop string")


def test_a_full_context_ends_the_text_or_is_an_error_as_asked(tinytf: Tinytf, decoder: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--max-tokens", "500")
    data = json.loads(tinytf(*given, "--json").out)
    assert data["ended"] == "context full"
    assert len(data["prompt"]["tokens"]) + len(data["steps"]) == 64 + 1
    ran = tinytf(*given, "--on-overflow", "error")
    assert (ran.status, ran.out) == (1, tinytf(*given).out)
    assert "the context of 64 tokens is full" in ran.err


def test_watching_shows_one_table_a_token_and_the_cache(tinytf: Tinytf, decoder: Path) -> None:
    given = ("generate", SENTENCE, "-m", decoder, "--watch", "--max-tokens", "4", "--top", "3", *WARM)
    ran = tinytf(*given)
    assert (ran.status, ran.err) == (0, "")
    assert "as drawn: after temperature 1.3, top-p 0.95" in ran.out
    heads = [place for place, line in enumerate(ran.lines) if line.split() == ["candidate", "p", "p", "as", "drawn"]]
    steps = json.loads(tinytf(*given, "--json").out)["steps"]
    for place, step in zip(heads, steps, strict=True):
        rows = ran.lines[place + 1 : place + 1 + len(step["candidates"])]
        for row, one in zip(rows, step["candidates"], strict=True):
            numbers = re.findall(r"(?<= )\d\.\d{3}", row)
            assert [float(number) for number in numbers] == pytest.approx([one["probability"], one["drawn"]], abs=5e-4)
            assert row.endswith("drawn") == (one["id"] == step["id"])
    assert "a token" in ran.out
    greedy = tinytf("generate", SENTENCE, "-m", decoder, "--watch", "--max-tokens", "4").out
    assert "as drawn" not in greedy
    assert sum(line.endswith("  taken") for line in greedy.splitlines()) == 4
    assert "cache" not in tinytf("generate", SENTENCE, "-m", decoder, "--watch", "--no-cache").out


def test_a_screen_shows_the_banner_the_prompt_and_why_it_ended(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("generate", SENTENCE, "-m", decoder, "--max-tokens", "5", screen=True)
    shown = without_colour(ran.out)
    assert shown.startswith("decoder · decoder, 2 layers")
    assert SENTENCE in shown
    assert "5 tokens · ended by max tokens · greedy, seed 0" in shown


def test_control_c_leaves_what_was_made_and_is_130(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tinytf.generate.loop as loop

    whole = json.loads(tinytf("generate", SENTENCE, "-m", decoder, "--json").out)["steps"]
    genuine = loop.choose
    calls = []

    def interrupted(*arguments: object) -> int:
        calls.append(1)
        if len(calls) == 6:
            signal.raise_signal(signal.SIGINT)
        return genuine(*arguments)

    monkeypatch.setattr(loop, "choose", interrupted)
    for options in ((), ("--json",), ("--format", "ndjson"), ("--watch",), ("-o", tmp_path / "a.json"), ("--lines",)):
        calls.clear()
        ran = (
            tinytf("generate", f"{SENTENCE}\nThe dog", *options, "-m", decoder)
            if options == ("--lines",)
            else (tinytf("generate", SENTENCE, *options, "-m", decoder))
        )
        assert ran.status == 130, options
        assert ran.err.endswith("tinytf: interrupted\n")
        if options == ("--json",):
            data = json.loads(ran.out)
            assert data["ended"] == "interrupted"
            assert [s["id"] for s in data["steps"]] == [s["id"] for s in whole[:5]]
        if options in ((), ("--lines",)):
            assert len(calls) == 6
            assert ran.out.endswith("\n")
    assert json.loads((tmp_path / "a.json").read_text("utf-8"))["ended"] == "interrupted"


@pytest.mark.slow
def test_control_c_in_a_real_process_is_130_and_the_text_is_there(decoder: Path) -> None:
    script = (
        "import time, tinytf.generate.loop as loop\n"
        "pauses = iter([0, 60])\n"
        "from tinytf_cli.main import main\n"
        "genuine = loop.choose\n"
        "def slow(*a):\n"
        "    time.sleep(next(pauses))\n"
        "    return genuine(*a)\n"
        "loop.choose = slow\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, "generate", SENTENCE, "-m", str(decoder), "--format", "ndjson"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(first)["type"] == "generate"
    assert json.loads(second)["number"] == 1
    assert json.loads(out.splitlines()[-1])["ended"] == "interrupted"
    assert err.strip() == b"tinytf: interrupted"


def test_a_reader_that_has_had_enough_hears_no_complaint(decoder: Path) -> None:
    for options in ([], ["--watch"], ["--format", "ndjson"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        err = Stream()
        with open(write_end, "w", encoding="utf-8") as pipe, streams(stdout=pipe, stderr=err):
            status = run(["generate", SENTENCE, "-m", str(decoder), *options])
            pipe.flush()
        assert (status, err.got()) == (0, b""), options


@pytest.mark.parametrize(
    "options",
    [
        ("--temperature", "-1"), ("--top-k", "0"), ("--top-p", "0"), ("--top-p", "1.5"), ("--min-p", "2"),
        ("--repetition-penalty", "0"), ("--max-tokens", "0"), ("--stop", ""), ("--temperature", "nan"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_wrong_setting_is_2_with_the_number(tinytf: Tinytf, decoder: Path, options: tuple[str, str]) -> None:
    ran = tinytf("generate", SENTENCE, "-m", decoder, *options)
    assert is_a_clean_error(ran)
    assert options[1].removesuffix(".0") in ran.err


@pytest.mark.parametrize("command", ["generate", "score"])
def test_an_encoder_says_what_it_is_for(tinytf: Tinytf, encoder: Path, command: str) -> None:
    ran = tinytf(command, SENTENCE, "-m", encoder)
    assert is_a_clean_error(ran)
    assert "predicts masked tokens" in ran.err
    assert "trace with [MASK]" in ran.err


@pytest.mark.parametrize("screen", [False, True])
def test_what_a_terminal_would_act_on_is_shown_and_newlines_are_newlines(
    tinytf: Tinytf, decoder: Path, bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch, screen: bool
) -> None:
    import tinytf.generate.loop as loop

    evil = bpe.encode("e\u0301\n\x1b[31m\x07 \u202e\rx").ids
    coming = iter(evil)
    monkeypatch.setattr(loop, "choose", lambda *_: next(coming))
    ran = tinytf("generate", SENTENCE, "-m", decoder, "--max-tokens", str(len(evil)), screen=screen)
    assert ran.status == 0
    out = without_colour(ran.out)
    assert "e\u0301\n\\x1b[31m\\x07 \\u202e\\x0dx\n" in out
    assert all(char.isprintable() or char == "\n" or char == "\u0301" for char in out)


@pytest.mark.parametrize("command", ["generate", "score"])
@pytest.mark.parametrize("form", ["text", "json", "ndjson"])
def test_a_stream_that_takes_7_bits_gets_7_bits(tinytf: Tinytf, decoder: Path, command: str, form: str) -> None:
    ran = tinytf(command, "The café ☃ 😀", "-m", decoder, "--format", form, encoding="ascii")
    assert (ran.status, ran.err) == (0, "")
    assert ran.data.isascii()


@pytest.mark.parametrize("options", [("--watch",), ()], ids=["--watch", "score"])
@pytest.mark.parametrize("width", ["20", "40", "80"])
def test_a_narrow_screen_is_not_overrun(tinytf: Tinytf, decoder: Path, options: tuple[str, ...], width: str) -> None:
    from rich.cells import cell_len

    given = ("generate", SENTENCE, *options, "--max-tokens", "3", *WARM) if options else ("score", SENTENCE)
    ran = tinytf(*given, "-m", decoder, "--width", width, screen=True)
    assert ran.status == 0
    assert max(cell_len(line) for line in without_colour(ran.out).splitlines()) <= int(width)


def test_every_line_is_a_prompt_of_its_own(tinytf: Tinytf, decoder: Path, opened: Model, tmp_path: Path) -> None:
    given = ("generate", "The cat\nThe dog", "--lines", "-m", decoder, "--max-tokens", "5")
    data = json.loads(tinytf(*given, "--json").out)
    texts = [opened.generate(prompt, max_tokens=5) for prompt in ("The cat", "The dog")]
    assert data["kind"] == "generations"
    assert [one["text"] for one in data["generations"]] == texts
    assert tinytf(*given, "-o", tmp_path / "a.txt").status == 0
    assert (tmp_path / "a.txt").read_bytes() == tinytf(*given).data


def test_a_score_has_the_figures_of_the_whole_text(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    ran = tinytf("score", SENTENCE, "-m", decoder, "--json")
    assert (ran.status, ran.err) == (0, "")
    data = json.loads(ran.out)
    ids = torch.tensor([token["id"] for token in data["tokens"]])
    with torch.no_grad():
        logits = opened.transformer(ids[None])[0, :-1]
    loss = float(torch.nn.functional.cross_entropy(logits, ids[1:]))
    assert data["loss"] == pytest.approx(loss, abs=1e-5)
    assert data["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert [one["id"] for one in data["scores"]] == ids[1:].tolist()
    first, *events = events_of(tinytf("score", SENTENCE, "-m", decoder, "--format", "ndjson").out)
    assert first["loss"] == data["loss"]
    assert len(events) == len(data["scores"])


def test_a_text_longer_than_the_context_is_scored_in_windows_and_says_so(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    text, context = "The cat sat on the mat. " * 40, opened.config.context
    data = json.loads(tinytf("score", text, "-m", decoder, "--json").out)
    assert len(data["tokens"]) > 2 * context
    assert len(data["scores"]) == len(data["tokens"]) - 1
    assert (data["windows"] > 2, data["before"] >= context // 2) == (True, True)
    shown = tinytf("score", text, "-m", decoder).out
    assert f"read in {data['windows']} windows of {context:,}" in shown
    assert len(json.loads(tinytf("score", text, "-m", decoder, "--truncate", "--json").out)["tokens"]) == context
    refused = tinytf("score", text, "-m", decoder, "--quantize", "int8")
    assert is_a_clean_error(refused)
    assert f"at most {context:,}" in refused.err


def test_a_score_is_coloured_by_surprise(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("score", SENTENCE, "-m", decoder, "--color", "always")
    assert "\x1b[38;5;" in ran.out or "48;" in ran.out
    assert "perplexity" in without_colour("\n".join(tinytf("score", SENTENCE, "-m", decoder).lines[:10]))


def test_a_text_of_one_token_has_no_score(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("score", "a", "-m", decoder)
    assert is_a_clean_error(ran)
    assert "1 token is too few" in ran.err


@pytest.mark.parametrize("option", ["--watch", "--explain-cache", "--beams=2"])
@pytest.mark.parametrize("wrong", [("--max-tokens", "0"), ("-m", "tiny-encoder")], ids=" ".join)
def test_what_cannot_be_continued_is_told_before_anything_is_shown(
    tinytf: Tinytf, option: str, wrong: tuple[str, str]
) -> None:
    assert is_a_clean_error(tinytf("generate", "The cat", option, *wrong))


def test_a_start_token_too_many_is_told_of(tinytf: Tinytf, llama: Path, tmp_path: Path):
    folder = tmp_path / "starting"
    shutil.copytree(llama, folder)
    data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    start = data["added_tokens"][0]
    data["post_processor"] = {
        "type": "TemplateProcessing", "pair": [], "single": [
            {"SpecialToken": {"id": start["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        ],
        "special_tokens": {start["content"]: {
            "id": start["content"], "ids": [start["id"]], "tokens": [start["content"]]
        }},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    ran = tinytf("generate", "-m", folder, f"{start['content']}The cat", "--max-tokens", 1)
    said = f"{start['content']} added before; the text has a start token of its own"
    assert ran.err == f"tinytf: there are two start tokens: {said}; --rendered adds none\n"
    assert tinytf("generate", "-m", folder, "The cat", "--max-tokens", 1).err == ""
