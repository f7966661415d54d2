"""Two logs of log-probabilities: every figure in numpy, what explains them, and bad logs refused by line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from schemas import hold

import tinytf
from tinytf.compare.logprobs import diff_logprobs
from tinytf.errors import DumpError, UsageError

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
