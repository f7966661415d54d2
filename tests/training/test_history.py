"""What is read back of a run: as it was written, while it is being written, and where it is damaged."""

import json
import math
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_runs import Called

from tinytf.checkpoints.run import load_run
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, UsageError
from tinytf.runs.history import AROUND, centred_mean
from tinytf.runs.reader import RunReader, read_history
from tinytf.runs.run_files import find_runs
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.metrics import Metrics
from tinytf.training.observers.log import SpeedLog
from tinytf.training.recipe import Recipe
from tinytf.training.train import report_of, train

CONFIG = ModelConfig.of(vocab_size=9, d_model=8, n_layers=1, n_heads=1, d_ff=8, context=16).to_dict()
STORED = {"format": "tinytf", "format_version": 1, "model": CONFIG}


def line(step: int, **more: object) -> str:
    return json.dumps({"step": step, "loss": 5.0 / step, "lr": 1e-3, "grad_norm": 1.0, **more}) + "\n"


def made(folder: Path, lines: str, steps: int = 100) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps({"steps": steps, "seed": 3}), "utf-8")
    (folder / "metrics.jsonl").write_text(lines, "utf-8")
    return folder


def test_a_real_run_is_read_back_as_it_was_trained(tmp_path: Path) -> None:
    recipe = Recipe(
        model={"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}, tokenizer="char", block=8,
        batch=2, steps=4, warmup=1, eval_every=2, held_out=0.2,
    )  # fmt: skip
    seen: list[Metrics] = []
    train(
        "The cat sat on the mat. " * 20, recipe, tmp_path / "run", observers=[Called(lambda line, _: seen.append(line))]
    )
    history = read_history(tmp_path / "run")
    assert history.step.tolist() == [1, 2, 3, 4]
    for name in ("loss", "lr", "grad_norm"):
        assert getattr(history, name).tolist() == [getattr(one, name) for one in seen]
    held_out = [(one.step, one.held_out_loss) for one in seen if one.held_out_loss is not None]
    assert list(history.held_out) == held_out
    assert history.best == min(held_out, key=lambda point: point[1])
    assert history.recipe == json.loads(json.dumps(recipe.to_dict()))
    assert history.config is not None
    assert (history.config.d_model, history.finished, history.skipped) == (8, True, 0)
    places = [tmp_path / "run" / "checkpoints" / f"step-00000{step}" for step in (2, 4)]
    found = [one for one in history.checkpoints if one.path in places]
    assert [(one.step, one.path) for one in found] == list(zip((2, 4), places, strict=True))


HEAVY = {
    "heads": {"previous": [[0.25] * 4] * 4},
    "health": {"rms": [0.5] * 8},
    "updates": {f"blocks.{number}.weight": 0.01 for number in range(8)},
    "noise": {"trace": 2.0, "square": 4.0},
    "milestones": ["one", "two"],
    "held_out_loss": 2.0,
    "seen_loss": 1.5,
    "copying": 0.1,
}


@pytest.mark.slow
def test_the_memory_of_a_reader_does_not_grow_with_what_lines_hold(tmp_path: Path) -> None:
    def peak(count: int) -> tuple[int, int]:
        run = made(tmp_path / str(count), "".join(line(step, **HEAVY) for step in range(1, count + 1)), 10**6)
        tracemalloc.start()
        history = read_history(run)
        assert history.heads[-1][0] == count
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size, (run / "metrics.jsonl").stat().st_size

    peak(10)
    (small, short), (large, long) = peak(2_000), peak(6_000)  # of a chunk of 1 MiB, and of some more
    assert large - small < (long - short) / 2


def test_what_lines_hold_is_read_of_the_lines_that_count(tmp_path: Path) -> None:
    lines = [line(1, heads_before={"previous": [[0.1]]}, heads={"previous": [[0.2]]}), "\n", "é not JSON\n"]
    lines += [line(step, **{**HEAVY, "updates": {"a": float(step)}}) for step in (2, 3)]
    lines += [line(2, **{**HEAVY, "updates": {"b": 7.0}, "milestones": ["again"]})]  # resumed after step 1
    history = read_history(made(tmp_path / "run", "".join(lines)))
    assert [(step, scores["previous"].tolist()) for step, scores in history.heads[:2]] == [(0, [[0.1]]), (1, [[0.2]])]
    assert history.updates == [(2, {"b": 7.0})]
    assert history.milestones == [(2, "again")]
    assert history.noise == [(2, 2.0, 4.0)]
    assert [history.held_out, history.seen, history.copying] == [[(2, 2.0)], [(2, 1.5)], [(2, 0.1)]]
    made(tmp_path / "run", line(1))
    with pytest.raises(CheckpointError, match="changed while it was read"):
        list(history.updates)


def test_a_jump_of_the_loss_far_above_the_steps_before_is_a_spike_and_noise_is_none(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    losses = 4.0 * np.exp(-np.arange(200) / 100) + 0.05 * random.standard_normal(200)
    assert not read_history(made(tmp_path / "calm", _lines(losses), 200)).spikes
    losses[[5, 79, 80, 150]] = 9.0, 6.0, 6.1, 4.0  # the first has too few before it, the third is no jump
    found = read_history(made(tmp_path / "run", _lines(losses), 200)).spikes
    assert [(one.step, one.loss) for one in found] == [(80, 6.0), (151, 4.0)]
    assert [one.usual for one in found] == [
        sum(sorted(losses[before])[24:26]) / 2 for before in (slice(29, 79), slice(100, 150))
    ]


def _lines(losses: np.ndarray) -> str:
    return "".join(line(step, loss=loss) for step, loss in enumerate(losses.tolist(), 1))


def test_a_spike_is_told_with_the_text_of_the_worst_example_of_its_batch(tmp_path: Path) -> None:
    recipe = Recipe(
        model={"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}, tokenizer="char", block=8,
        batch=4, steps=60, warmup=1, eval_every=60, held_out=0.2,
    )  # fmt: skip
    run = tmp_path / "run"
    text = "".join(np.random.default_rng(1).choice(list("abcdefgh "), 900).tolist())
    setup = train(text, recipe, run).setup
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    rows[56]["loss"] = 50.0
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (spike,) = report_of(run, recipe, setup).spikes
    batch, model = setup.examples.batch(56), load_run(run)
    with torch.no_grad():
        logits = torch.stack([model(row[None])[0] for row in batch.ids])  # (B, T, V)
    each = torch.nn.functional.cross_entropy(logits.mT, batch.targets, reduction="none").mean(1)
    assert (spike.spike.step, spike.example) == (57, int(each.argmax()))
    assert spike.worst == pytest.approx(float(each.max()), abs=1e-5)
    assert spike.text == setup.tokenizer.decode(batch.ids[spike.example].tolist())


def test_heads_milestones_speed_and_checkpoints_are_found(tmp_path: Path) -> None:
    heads = {"entropy": [[0.5, 0.25]], "previous": [[0.1, None]], "duplicate": None, "induction": "no"}
    run = made(tmp_path, line(1) + line(2, heads=heads, milestones=["L0H1 became one", 7]) + line(3))
    (run / "speed.jsonl").write_text(
        '{"step": 1, "seconds": 1.0, "tokens_per_second": 10.0, "memory_bytes": 5}\n'
        '{"step": 3, "seconds": 2.0, "tokens_per_second": 20.0}\n{"step": 4, "sec', "utf-8"
    )  # fmt: skip
    for name in ("step-000002", "step-000010", "step-half", "other"):
        (run / "checkpoints" / name).mkdir(parents=True)
        (run / "checkpoints" / name / "config.json").write_text(json.dumps(STORED), "utf-8")
        (run / "checkpoints" / name / "model.safetensors").touch()
    (run / "checkpoints" / "step-000010" / "model.safetensors").unlink()
    history = read_history(run)
    ((step, scores),) = history.heads
    assert step == 2
    assert sorted(scores) == ["entropy", "previous"]
    assert scores["entropy"].tolist() == [[0.5, 0.25]]
    assert math.isnan(scores["previous"][0, 1])
    assert history.milestones == [(2, "L0H1 became one")]
    assert history.speed.step.tolist() == [1, 3]
    assert history.tokens_per_second == 20.0
    assert history.seconds_left == pytest.approx(97 * 0.5)
    assert [one.step for one in history.checkpoints] == [2]
    assert history.config is not None
    assert history.config.vocab_size == 9


def test_a_torn_last_line_is_not_there_yet(tmp_path: Path) -> None:
    run = made(tmp_path, line(1) + line(2)[:-9])
    history = read_history(run)
    assert (history.step.tolist(), history.skipped) == ([1], 0)


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path: Path) -> None:
    assert read_history(made(tmp_path, line(1) + line(2).rstrip())).last == 2


def test_lines_that_are_no_metrics_are_counted_and_left_out(tmp_path: Path) -> None:
    bad = '{"step": 2, "lo\n[1]\n{"step": "x"}\n{"loss": 1}\nnonsense\n'
    history = read_history(made(tmp_path, line(1) + bad + '{"step": 3, "loss": "x"}\n' + line(4)))
    assert history.step.tolist() == [1, 3, 4]
    assert history.skipped == 5
    assert math.isnan(history.loss[1])


def test_where_a_run_was_taken_up_again_the_later_lines_count(tmp_path: Path) -> None:
    first = "".join(line(step, held_out_loss=step) for step in range(1, 8))
    again = "".join(line(step, held_out_loss=10 * step) for step in range(4, 6))
    history = read_history(made(tmp_path, first + again))
    assert history.step.tolist() == [1, 2, 3, 4, 5]
    assert [loss for _, loss in history.held_out] == [1, 2, 3, 40, 50]


def test_a_reader_takes_what_was_added_and_notices_another_file(tmp_path: Path) -> None:
    run = made(tmp_path, line(1))
    reader = RunReader(run)
    assert reader.read().last == 1
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(line(2) + line(3)[:12])
    assert reader.read().step.tolist() == [1, 2]
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(line(3)[12:] + line(4).rstrip())
    assert reader.read().step.tolist() == [1, 2, 3, 4]
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write("\n" + line(5))
    assert reader.read().step.tolist() == [1, 2, 3, 4, 5]
    made(run, "".join(line(step, held_out_loss=1.0) for step in range(1, 30)))
    history = reader.read()
    assert (history.last, len(history.held_out), history.skipped) == (29, 29, 0)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such folder"):
        read_history(tmp_path / "none")
    with pytest.raises(UsageError, match=r"neither recipe\.json nor metrics\.jsonl"):
        read_history(tmp_path)
    run = made(tmp_path / "a", "nonsense\n")
    with pytest.raises(CheckpointError, match="holds no metrics"):
        read_history(run)
    (run / "metrics.jsonl").unlink()
    assert read_history(run).last == 0
    for recipe in ("{}", '{"steps": 0}', '{"steps": "many"}'):
        (run / "recipe.json").write_text(recipe, "utf-8")
        with pytest.raises(CheckpointError, match="steps"):
            read_history(run)
    (run / "recipe.json").write_text("{", "utf-8")
    with pytest.raises(CheckpointError, match="is not JSON"):
        read_history(run)
    run = made(tmp_path / "b", line(1))
    (run / "recipe.json").unlink()
    with pytest.raises(CheckpointError, match=r"no recipe\.json"):
        read_history(run)
    run = made(tmp_path / "c", line(1))
    (run / "model.safetensors").touch()
    (run / "config.json").write_text('{"format": "tinytf", "format_version": 1, "model": {"d_model": -1}}', "utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_history(run)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"no metrics\.jsonl"):
        read_history(run)


def test_runs_are_found_one_and_two_levels_deep_and_checkpoints_are_none(tmp_path: Path) -> None:
    for name in ("b", "a", "group/c", "group/deep/d"):
        made(tmp_path / name, line(1))
    (tmp_path / "a" / "checkpoints").mkdir()
    made(tmp_path / "a" / "inside", line(1))
    (tmp_path / "empty").mkdir()
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b", tmp_path / "group" / "c"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(UsageError, match="there is no folder"):
        find_runs(tmp_path / "none")


@given(st.lists(st.floats(0, 100), max_size=200))
def test_a_mean_never_leaves_the_range_of_its_losses_and_does_not_lag(losses: list[float]) -> None:
    found = centred_mean(np.array(losses, dtype=np.float64))
    for place, mean in enumerate(found.tolist()):
        side = min(AROUND, place, len(losses) - 1 - place)
        near = losses[place - side : place + side + 1]
        assert mean == pytest.approx(sum(near) / len(near), abs=1e-9)
        assert min(near) - 1e-9 <= mean <= max(near) + 1e-9


@pytest.mark.parametrize("size", [0, 1, 2, 40, 41, 600])
def test_on_a_straight_line_the_mean_is_the_line(size: int) -> None:
    falling = 9 - 0.01 * np.arange(size)
    np.testing.assert_allclose(centred_mean(falling), falling, rtol=1e-12)


def test_a_run_is_ranked_by_the_mean_of_its_last_losses(tmp_path: Path) -> None:
    losses = [*[9.0] * 30, *[2.0] * AROUND]
    lines = "".join(line(step, loss=loss) for step, loss in enumerate(losses, 1))
    assert read_history(made(tmp_path, lines, len(losses))).recent_loss == 2.0


@pytest.mark.slow
def test_two_hundred_thousand_steps_are_quick(tmp_path: Path) -> None:
    """A fifth of a million; the limits leave a slow machine room: it takes half a second on a quick one."""
    run = made(tmp_path, "".join(line(step) for step in range(1, 200_001)), 200_000)
    before = time.process_time()
    history = read_history(run)
    assert time.process_time() - before < 3
    assert history.finished


@pytest.mark.exhaustive
def test_lines_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Ten times the steps take no more than their numbers more: 32 bytes, twice while they are copied, and slack."""

    def peak(steps: int) -> int:
        run = made(tmp_path / str(steps), "".join(line(step) for step in range(1, steps + 1)), steps)
        tracemalloc.start()
        read_history(run)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(100_000) - peak(20_000) < 80_000 * 32 * 4


def test_a_run_without_a_speed_says_no_time(tmp_path: Path) -> None:
    history = read_history(made(tmp_path, line(1)))
    assert history.seconds_left is None
    assert history.tokens_per_second is None


def test_the_time_that_is_left_is_by_the_clock_of_one_process(tmp_path: Path) -> None:
    run = made(tmp_path, line(1) + line(40))
    rows = [(10, 100.0), (20, 200.0), (30, 1.0), (40, 2.0)]
    (run / "speed.jsonl").write_text("".join(json.dumps({"step": s, "seconds": t}) + "\n" for s, t in rows), "utf-8")
    assert read_history(run).seconds_left == pytest.approx(60 * 0.1)
    (run / "speed.jsonl").write_text(
        "".join(json.dumps({"step": s, "seconds": t}) + "\n" for s, t in rows[:3]), "utf-8"
    )
    assert read_history(run).seconds_left is None


def test_the_speed_is_that_of_the_steps_and_not_of_what_passes_between_them(tmp_path: Path, monkeypatch) -> None:
    """Steps of 2 seconds on 100 tokens each; between them 5 seconds of measuring, and 1,000 after the last one."""
    clock = [0.0]
    monkeypatch.setattr("tinytf.training.observers.log.time.monotonic", lambda: clock[0])
    run = made(tmp_path, line(1) + line(2), 2)
    pace = SpeedLog(run / "speed.jsonl")
    clock[0] = 7.0
    pace.start(0)
    for step, between in ((1, 5.0), (2, 1000.0)):
        clock[0] += 2.0
        pace.count(100, 2.0)
        clock[0] += between
        assert pace.write(step, last=step == 2) == 50.0
    history = read_history(run)
    assert history.tokens_per_second == 50.0
    assert history.elapsed == 2 * 2.0 + 5.0 + 1000.0


def test_a_resumed_run_has_no_speed_before_its_own_and_the_time_of_both_processes(tmp_path: Path) -> None:
    run = made(tmp_path, line(1) + line(40))
    pace = SpeedLog(run / "speed.jsonl")
    (run / "speed.jsonl").write_text('{"step": 40, "seconds": 9.5, "tokens_per_second": 800.0}\n', "utf-8")
    assert read_history(run).tokens_per_second == 800.0
    pace.start(40)
    assert read_history(run).tokens_per_second is None
    with (run / "speed.jsonl").open("a") as lines:
        lines.write('{"step": 50, "seconds": 2.0, "tokens_per_second": 300.0}\n')
    assert read_history(run).tokens_per_second == 300.0
    assert read_history(run).elapsed == 11.5


def test_the_last_measurement_of_the_held_out_text_says_how_far_it_is(tmp_path: Path) -> None:
    heard = []
    recipe = Recipe(
        model={name: CONFIG[name] for name in ("d_model", "n_layers", "n_heads", "d_ff")}, tokenizer="char",
        block=8, batch=2, steps=4, warmup=0, held_out=0.5,
    )  # fmt: skip
    train("The cat sat on the mat. " * 20, recipe, tmp_path / "run", on_progress=lambda *now: heard.append(now))
    assert heard[-8:] == [("measuring the held-out text", done, 8) for done in range(8)]


def test_epochs_and_bits_per_byte_are_those_of_the_text(tmp_path: Path) -> None:
    """Counted from the text itself: in single characters a token is as many bytes as UTF-8 has for it."""
    text = "The cät sat on the mat. " * 20
    recipe = Recipe(
        model={name: CONFIG[name] for name in ("d_model", "n_layers", "n_heads", "d_ff")}, tokenizer="char",
        block=8, batch=2, steps=4, warmup=0, held_out=0.5,
    )  # fmt: skip
    train(text, recipe, tmp_path / "run")
    history = read_history(tmp_path / "run")
    held_out = np.fromfile(tmp_path / "run" / "tokens" / "held_out.bin", dtype=np.uint16)
    said = Tokenizer.load(tmp_path / "run" / "tokenizer.json").decode(held_out.tolist())
    assert len(said) > 100
    assert history.epochs == pytest.approx(4 * 2 * 8 / (len(text) - len(said)), rel=0.02)
    (_, loss) = history.held_out[-1]
    bits = loss / math.log(2) * len(held_out) / len(said.encode("utf-8"))
    assert history.bits_per_byte(loss) == pytest.approx(bits)


def test_how_often_gradients_were_clipped_is_a_share_of_the_last_hundred(tmp_path: Path) -> None:
    norms = [9.0] * 50 + [2.0] * 25 + [0.5] * 75
    run = made(tmp_path, "".join(line(step, grad_norm=norm) for step, norm in enumerate(norms, 1)))
    (run / "recipe.json").write_text(json.dumps({"steps": 200, "clip": 1.0}), "utf-8")
    assert read_history(run).clip_rate == 0.25


def test_a_held_out_loss_that_rises_is_said_with_how_much(tmp_path: Path) -> None:
    for losses, risen in (((3.0, 2.0, 2.5), 0.5), ((3.0, 2.0, 2.01), None), ((3.0, 2.5, 2.0), None)):
        lines = "".join(line(step, held_out_loss=loss) for step, loss in enumerate(losses, 1))
        assert read_history(made(tmp_path / str(losses[2]), lines)).risen == risen


def test_health_of_the_layers_is_read_back(tmp_path: Path) -> None:
    health = {"gradient_norm": [1.0, 2.0], "update_ratio": [0.5, "x"], "dead": [[1.0]]}
    ((step, found),) = read_history(made(tmp_path, line(1) + line(2, health=health))).health
    assert (step, {name: values.tolist() for name, values in found.items()}) == (2, {"gradient_norm": [1.0, 2.0]})
