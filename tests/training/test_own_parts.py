"""Training from Python with a data source, an objective, a schedule and an observer of one's own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training_runs import CAUSAL, STORY, changed, files_of, metrics_of

import tinytf
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.training.metrics import Metrics

SHORT = changed(CAUSAL, steps=4, warmup=0, probe_every=0, sample_tokens=0)


class Noted(tinytf.Observer):
    """Notes when it is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def gradients(self, line: Metrics) -> None:
        assert line.grad_norm != line.grad_norm  # not known yet
        self.calls.append("gradients")

    def step(self, line: Metrics) -> None:
        self.calls.append("step")
        line.own["square"] = line.step**2

    def end(self) -> None:
        self.calls.append("end")


class Reading(tinytf.Observer):
    """Notes the newest line of the files at each step."""

    reads_files = True

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def step(self, line: Metrics) -> None:
        newest = (self.loop.out / "metrics.jsonl").read_text("ascii").splitlines()[-1]
        self.calls.append(f"written {json.loads(newest)['step']}")


def test_an_observer_is_called_at_every_step_and_its_numbers_are_all_that_changes(tmp_path: Path) -> None:
    noted = Noted()
    tinytf.train(STORY, SHORT, tmp_path / "observed", observers=[Reading(noted.calls), noted])
    tinytf.train(STORY, SHORT, tmp_path / "alone")
    assert noted.calls == [call for n in range(1, 5) for call in ("gradients", "step", f"written {n}")] + ["end"]
    observed, alone = files_of(tmp_path / "observed"), files_of(tmp_path / "alone")
    assert {name for name in alone if alone[name] != observed[name]} == {"metrics.jsonl"}
    lines = metrics_of(tmp_path / "observed")
    assert [line.pop("own")["square"] for line in lines] == [1, 4, 9, 16]
    assert lines == metrics_of(tmp_path / "alone")


def test_an_objective_of_ones_own_that_is_cross_entropy_trains_to_the_bit_in_parts_too(tmp_path: Path) -> None:
    def cross_entropy(model: Transformer, batch: tinytf.Batch) -> Tensor:
        logits = model.unembed(model.hidden(batch.ids).flatten(0, 1))
        return F.cross_entropy(logits, batch.targets.flatten(), reduction="sum")

    recipe = changed(SHORT, accumulate=2, repeats=0.0)
    tinytf.train(STORY, recipe, tmp_path / "own", objective=cross_entropy)
    tinytf.train(STORY, recipe, tmp_path / "usual")
    assert files_of(tmp_path / "own") == files_of(tmp_path / "usual")


def test_a_schedule_of_ones_own_gives_the_rate_of_each_step(tmp_path: Path) -> None:
    rates = [1e-3, 5e-3, 2e-3, 0.0]
    run = tinytf.train(STORY, SHORT, tmp_path / "run", schedule=rates.__getitem__)
    assert [line["lr"] for line in metrics_of(run.path)] == rates


class Ramp(tinytf.Examples):
    """Rising ids, so that the next one is certain."""

    held_out_batches = 1

    def batch(self, step: int) -> tinytf.Batch:
        ids = (torch.arange(9) + torch.arange(step, step + 3)[:, None]) % 12
        return tinytf.Batch(ids[:, :-1], ids[:, 1:], None)

    def held_out(self, limit: int | None = None) -> Iterator[tinytf.Batch]:
        yield self.batch(1000)


def test_batches_of_ones_own_are_learned_measured_filmed_and_gone_on_with(tmp_path: Path) -> None:
    tokenizer = tinytf.train(STORY, SHORT, tmp_path / "text").setup.tokenizer
    recipe = changed(SHORT, steps=60, lr=1e-2, probe_every=30, eval_every=30)
    whole = tinytf.train(Ramp(), recipe, tmp_path / "whole", tokenizer=tokenizer)
    assert whole.last.held_out_loss is not None
    assert whole.last.held_out_loss < 1.0
    stops = iter([False] * 19 + [True])
    tinytf.train(Ramp(), recipe, tmp_path / "parts", tokenizer=tokenizer, interrupted=lambda: next(stops))
    tinytf.train(Ramp(), recipe, tmp_path / "parts", tokenizer=tokenizer, resume=True)
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")
    with pytest.raises(UsageError, match="whose tokenizer is unknown"):
        tinytf.train(Ramp(), recipe, tmp_path / "none")


def test_a_path_a_text_texts_and_rows_are_told_apart(tmp_path: Path) -> None:
    texts = STORY.split("\n\n")
    (tmp_path / "story.txt").write_text(STORY, "utf-8")
    recipe = changed(SHORT, steps=1)
    rows = [{"text": text, "id": number} for number, text in enumerate(texts)]
    sources = {
        "path": tmp_path / "story.txt", "str": str(tmp_path / "story.txt"), "paths": [tmp_path / "story.txt"],
        "text": STORY, "texts": iter(texts), "rows": rows,
    }  # fmt: skip
    for name, source in sources.items():
        tinytf.train(source, changed(recipe, tokenizer="bpe", vocab_size=260, block=8), tmp_path / name)
    tokens = {(tmp_path / name / "tokens" / "train.bin").read_bytes() for name in sources}
    assert len(tokens) == 1
    with pytest.raises(UsageError, match=r"there is no file 'stroy\.txt'"):
        tinytf.train("stroy.txt", recipe, tmp_path / "none")
    with pytest.raises(UsageError, match="a corpus is texts, or rows"):
        tinytf.train([torch.arange(9)], recipe, tmp_path / "none")  # type: ignore[list-item]
    longer = changed(recipe, tokenizer="bpe", vocab_size=260, block=8, steps=2)
    assert tinytf.train(rows, longer, tmp_path / "rows", resume=True).last.step == 2
