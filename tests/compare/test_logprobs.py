"""Two logs of log-probabilities: every figure in numpy, what explains them, and bad logs refused by line."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from schemas import hold
from torch import Tensor

import tinytf
from tinytf.compare.logprobs import diff_logprobs
from tinytf.compare.rounding import rounding_tests
from tinytf.errors import DumpError, UsageError
from tinytf.generate import samplers

TEXTS = ["The cat sat on the mat.", "A bird sings in the tree.", "The dog lost the ball."]


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@torch.no_grad()
def logged(model: tinytf.Model, dtype: torch.dtype, scale: float = 1.0) -> list[dict[str, object]]:
    """What another program logs, whose logits are scaled."""
    transformer, rows = tinytf.load("tiny", dtype=str(dtype).removeprefix("torch.")).transformer, []
    for text in TEXTS:
        ids = list(model.encode(text).ids)
        found = (transformer(torch.tensor([ids]))[0, :-1].double() * scale).log_softmax(-1)
        rows.append({"ids": ids, "logprobs": found.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()})
    return rows


def test_every_figure_is_that_of_numpy(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    a = [generator.normal(-2, 1, size) for size in (5, 9, 3)]
    b = [one + generator.normal(0, 0.1, len(one)) for one in a]
    logs = [written(tmp_path / f"{name}.jsonl", [{"logprobs": [None, *one.tolist()]} for one in rows])
            for name, rows in (("a", a), ("b", b))]  # fmt: skip
    found, deltas = diff_logprobs(*logs), np.concatenate(a) - np.concatenate(b)
    hold(found.to_dict())
    assert (found.texts, found.tokens, found.own, found.holds) == (3, 17, None, True)
    assert found.rms == pytest.approx(np.sqrt((deltas**2).mean()))
    assert found.mean == pytest.approx(deltas.mean())
    assert found.kl == pytest.approx((np.exp(deltas) - 1 - deltas).mean())
    assert found.quantiles == pytest.approx([np.quantile(np.abs(deltas), q) for q in (0.5, 0.9, 0.99, 1)])
    assert found.ratios == pytest.approx([np.exp(np.quantile(deltas, q)) for q in (0, 0.01, 0.99, 1)])
    at = int(np.abs(deltas).argmax())
    text, place = next((n, at - start) for n, start in enumerate((0, 5, 14)) if at < (5, 14, 17)[n])
    assert (found.worst.text, found.worst.position) == (text, place + 1)
    assert found.worst.first - found.worst.second == pytest.approx(deltas[at])


def test_a_trainer_in_float32_and_a_rollout_in_bfloat16_only_round(model: tinytf.Model, tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", logged(model, torch.float32))
    b = written(tmp_path / "b.jsonl", logged(model, torch.bfloat16))
    found = diff_logprobs(a, b, model, "bf16")
    assert found.own == pytest.approx(found.rms, rel=1e-3)
    assert (found.holds, found.beyond) == (True, None)
    assert found.sentence.startswith("Rounding: the log-probabilities are ")
    hold(found.to_dict())


def test_another_temperature_is_no_rounding(model: tinytf.Model, tmp_path: Path) -> None:
    a = written(tmp_path / "a.jsonl", logged(model, torch.float32))
    b = written(tmp_path / "b.jsonl", logged(model, torch.float32, scale=0.8))
    found = diff_logprobs(a, b, model, "bf16")
    assert not found.holds
    assert found.beyond is not None
    assert abs(found.beyond.first - found.beyond.second) <= abs(found.worst.first - found.worst.second)
    assert found.sentence.startswith("No rounding: ")
    hold(found.to_dict())


@pytest.mark.parametrize(("line", "message"), [
    ("{}", "line 2: no logprobs (KeyError)"), ("[1", "line 2: no logprobs (JSONDecodeError)"),
    ('{"logprobs": ["x"]}', "line 2: no logprobs (ValueError)"),
    ('{"ids": [1], "logprobs": [-1, -2]}', "line 2: 2 logprobs of 1 ids"),
    ('{"logprobs": [-1, -2, -3]}', "text 2 is another in "),
    ('{"ids": [1, 3], "logprobs": [-1, -2]}', "text 2 is another in "), ("", " has 1 texts, and "),
])  # fmt: skip
def test_a_bad_log_is_refused_by_line(tmp_path: Path, line: str, message: str) -> None:
    right = '{"ids": [1, 2], "logprobs": [-1, -2]}'
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text(f"{right}\n{line}\n", "utf-8")
    b.write_text(f"{right}\n{right}\n", "utf-8")
    with pytest.raises(DumpError) as caught:
        diff_logprobs(a, b)
    assert message in caught.value.message


def test_a_floor_needs_a_model_and_ids(model: tinytf.Model, tmp_path: Path) -> None:
    log = written(tmp_path / "a.jsonl", [{"logprobs": [-1.0]}])
    for given in (None, model):
        with pytest.raises(UsageError, match="the model's own error is measured on the ids"):
            diff_logprobs(log, log, given, "bf16")
    with pytest.raises(DumpError, match="No such file"):
        diff_logprobs(tmp_path / "none.jsonl", log)


PROMPTS = [
    "The cat sat on",
    "A bird sings in",
    "The dog lost the",
    "Once there was a",
    "In the morning the",
    "The king of",
]
Warp = Callable[[Tensor, list[int], int], Tensor]
"""What a program makes of the logits (V,) that follow ids, of which so many are the prompt."""


def plain(logits: Tensor, ids: list[int], prompt: int) -> Tensor:
    return logits


def presence(by: float) -> Warp:
    def warp(logits: Tensor, ids: list[int], prompt: int) -> Tensor:
        return logits - by * (torch.bincount(torch.tensor(ids[prompt:], dtype=torch.long), minlength=len(logits)) > 0)

    return warp


CHANGES: dict[str, Warp] = {
    "are those of a temperature of 0.95": lambda logits, *_: logits / 0.95,
    "are those of a temperature of 1.137": lambda logits, *_: logits / 1.137,
    "are renormalised over top-p 0.9": lambda logits, *_: samplers.keep_top_p(logits, 0.9),
    "are renormalised over top-k 20": lambda logits, *_: samplers.keep_top_k(logits, 20),
    "are renormalised over min-p 0.05": lambda logits, *_: samplers.keep_min_p(logits, 0.05),
    "are renormalised over top-p 0.9 after a temperature of 0.7":
        lambda logits, *_: samplers.keep_top_p(logits / 0.7, 0.9),
    "are renormalised over top-p 0.9 and then take a temperature of 0.7":
        lambda logits, *_: samplers.keep_top_p(logits, 0.9) / 0.7,
    "have a repetition penalty of 1.1 on all tokens before":
        lambda logits, ids, _: samplers.penalise_repetition(logits, ids, 1.1),
    "have a presence penalty of 0.5 on the logged tokens": presence(0.5),
}  # fmt: skip


@pytest.fixture(scope="module")
def rounded() -> tinytf.Model:
    return tinytf.load("tiny", dtype="bfloat16")


@torch.no_grad()
def drawn(model: tinytf.Model, warp: Warp = plain, count: int = 20) -> list[tuple[list[int], int]]:
    """Texts that a program draws from its own distribution, each with the length of its prompt."""
    generator, texts = torch.Generator().manual_seed(3), []
    for words in PROMPTS:
        ids = list(model.encode(words).ids)
        start = len(ids)
        for _ in range(count):
            logits = warp(model.transformer(torch.tensor([ids]))[0, -1].float(), ids, start)
            ids.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
        texts.append((ids, start))
    return texts


@torch.no_grad()
def log_of(path: Path, texts: list[tuple[list[int], int]], model: tinytf.Model, warp: Warp = plain,
           before: Callable[[list[int]], list[int]] = lambda prompt: prompt,
           written_as: Callable[[list[float]], list[float]] = lambda one: one) -> Path:  # fmt: skip
    """The log of a program: the log-probabilities of the drawn tokens."""
    rows: list[dict[str, object]] = []
    for ids, start in texts:
        read = [*before(ids[:start]), *ids[start:]]
        prompt = len(read) - len(ids) + start
        logits = model.transformer(torch.tensor([read]))[0].float()
        values = [float(warp(logits[at - 1], read[:at], prompt).double().log_softmax(-1)[read[at]])
                  for at in range(prompt, len(read))]  # fmt: skip
        rows.append({"ids": ids, "logprobs": written_as(values)})
    return written(path, rows)


@pytest.mark.share(24)
@pytest.mark.parametrize("words", CHANGES)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.exhaustive)])
def test_what_a_program_did_to_its_distribution_is_found_by_experiment(
    model: tinytf.Model, rounded: tinytf.Model, tmp_path: Path, words: str, dtype: str
) -> None:
    texts = drawn(model, CHANGES[words])
    a = log_of(tmp_path / "a.jsonl", texts, model)
    b = log_of(tmp_path / "b.jsonl", texts, model if dtype == "float32" else rounded, CHANGES[words])
    found = diff_logprobs(a, b, model, "bf16")
    assert not found.holds
    best, number = found.explanations[0], re.compile(r"\d[\d.]*\d")
    assert (best.side, number.sub("#", best.words)) == ("b.jsonl", number.sub("#", words))
    exact = 1e-4 if dtype == "float32" else 0.1
    assert [float(n) for n in number.findall(best.words)] == pytest.approx(
        [float(n) for n in number.findall(words)], rel=exact
    )
    assert best.left <= (1e-4 if dtype == "float32" else 0.03)
    assert found.sentence.startswith(f"No rounding: those of b.jsonl {best.words}")
    hold(found.to_dict())


@pytest.mark.share(8)
@pytest.mark.parametrize(("words", "change"), [
    ("are logarithms to base 2", lambda values: [value / math.log(2) for value in values]),
    ("are logarithms to base 10", lambda values: [value / math.log(10) for value in values]),
    ("are divided by 0.9 after the softmax", lambda values: [value / 0.9 for value in values]),
    ("are lower by 0.105 at every token", lambda values: [value - 0.105 for value in values]),
    ("are those of the token after", lambda values: [*values[1:], -1.0]),
    ("are those of the token before", lambda values: [-1.0, *values[:-1]]),
])  # fmt: skip
def test_what_the_numbers_show_alone_needs_no_model(
    model: tinytf.Model, tmp_path: Path, words: str, change: Callable[[list[float]], list[float]]
) -> None:
    texts = drawn(model)
    logs = log_of(tmp_path / "a.jsonl", texts, model), log_of(tmp_path / "b.jsonl", texts, model, written_as=change)
    found = diff_logprobs(*logs)
    assert ("b.jsonl", words) in [(one.side, one.words) for one in found.explanations]
    assert diff_logprobs(*logs, model, "bf16").explanations[0].words == words


@pytest.mark.parametrize(("words", "before"), [
    ("are those of the text without its first token", lambda prompt: prompt[1:]),
    ("are those of the text after a start token", lambda prompt: [0, *prompt]),
])  # fmt: skip
def test_another_beginning_of_the_text_is_found(
    model: tinytf.Model, tmp_path: Path, words: str, before: Callable[[list[int]], list[int]]
) -> None:
    start = model.tokenizer.start()
    assert start is not None
    assert start.ids == [0]
    texts = drawn(model)
    logs = log_of(tmp_path / "a.jsonl", texts, model), log_of(tmp_path / "b.jsonl", texts, model, before=before)
    assert [one.words for one in diff_logprobs(*logs, model, "bf16").explanations] == [words]


@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_numbers_of_another_type_are_rounding_on_every_test(model: tinytf.Model, tmp_path: Path, dtype: str) -> None:
    texts, other = drawn(model), tinytf.load("tiny", dtype=dtype)
    logs = log_of(tmp_path / "a.jsonl", texts, model), log_of(tmp_path / "b.jsonl", texts, other)
    for pair in (logs, logs[::-1]):
        found = diff_logprobs(*pair, model, "bf16")
        assert found.holds
        assert found.explanations == ()
        assert [test.name for test in found.tests if not test.holds] == []


def test_each_test_fails_on_what_it_is_for() -> None:
    generator = np.random.default_rng(0)
    noise, logprobs = generator.normal(0, 0.01, 400), -generator.exponential(2, 400)

    def failing(deltas: np.ndarray, own: float | None = 0.01) -> list[str]:
        return [test.name for test in rounding_tests(deltas, logprobs[: len(deltas)], own) if not test.holds]

    assert failing(noise) == []
    assert failing(noise + 0.005) == ["mean"]
    assert failing(np.where(np.arange(400) % 5, 0.001, -0.03)) == ["mean", "signs"]
    assert failing(noise + 0.005 * (logprobs - np.median(logprobs))) == ["probability"]
    assert failing(7 * noise) == ["size"]
    assert failing(noise[:8] + 0.1, None) == []  # so few tokens do not tell
