"""A long measurement that is interrupted shows what it has, and continues from a file that kept it."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import SENTENCE, Tinytf, is_a_clean_error
from safetensors.torch import load_file, save_file

from tinytf.loading import Model, load
from tinytf.report import Progress, Report

OTHER = "The dog sat on the mat"
Measure = Callable[..., Report]


@pytest.fixture
def model(decoder: Path) -> Model:
    return load(str(decoder))


@pytest.fixture
def changed(decoder: Path, tmp_path: Path) -> Path:
    """The same decoder with other numbers."""
    folder = tmp_path / "changed"
    folder.mkdir()
    for path in decoder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    generator = torch.Generator().manual_seed(5)
    tensors = load_file(decoder / "model.safetensors")
    noisy = {name: one + 0.05 * torch.randn(one.shape, generator=generator) for name, one in tensors.items()}
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that these small models are measured in several of them."""
    monkeypatch.setattr("tinytf.cause.interventions.sweep.most_tokens", lambda _: 8)


def after(calls: int) -> Progress:
    """An interrupt as soon as so much was measured."""
    left = iter(range(calls - 1, -1, -1))

    def interrupt(done: int, of: int) -> None:
        if not next(left, 1):
            raise KeyboardInterrupt

    return interrupt


MEASURES: dict[str, Callable[[Model, Model], Measure]] = {
    "ablate": lambda model, _: lambda **how: model.ablate_sweep(SENTENCE, **how),
    "patch": lambda model, _: lambda **how: model.patch_sweep(SENTENCE, OTHER, **how),
    "blame": lambda model, other: lambda **how: model.blame([SENTENCE, OTHER, "The cat ran"], other, **how),
}


@pytest.mark.parametrize("name", MEASURES)
def test_what_was_measured_before_an_interrupt_is_there_and_continued(
    name: str, model: Model, changed: Path, tmp_path: Path
) -> None:
    measure, path = MEASURES[name](model, load(str(changed))), tmp_path / "kept.ndjson"
    whole, part = measure(), measure(resume=path, on_progress=after(2))
    assert not whole.interrupted
    assert part.interrupted
    assert list(part.events())[-1] == {"type": "interrupted"}
    assert "interrupted" not in [event["type"] for event in whole.events()]
    lines = path.read_bytes().splitlines()
    assert all({"of", "name", "found", "sum"} == set(json.loads(line)) for line in lines)
    again = measure(resume=path)
    assert again.to_dict() | {"check": 0, "checks": 0} == whole.to_dict() | {"check": 0, "checks": 0}
    assert again.holds
    assert path.read_bytes().splitlines()[: len(lines)] == lines
    complete = path.read_bytes()
    assert measure(resume=path).to_dict() | {"check": 0, "checks": 0} == whole.to_dict() | {"check": 0, "checks": 0}
    assert {*path.read_bytes().splitlines()} == {*complete.splitlines()}


def test_sets_are_continued_and_kept_in_the_file(
    model: Model, changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinytf.cause.restoring._CHOSEN_ON", 2)
    other, texts, path = load(str(changed)), [SENTENCE, OTHER, "The cat ran"], tmp_path / "kept.ndjson"
    gains = model.blame(texts, other).gains
    whole = model.restoring(texts, other, gains, share=0.9999)
    part = model.restoring(texts, other, gains, share=0.9999, resume=path, on_progress=after(2))
    assert [one.added for one in part] == [one.added for one in whole[:1]]
    lines = path.read_bytes().splitlines()
    assert model.restoring(texts, other, gains, share=0.9999, resume=path) == whole
    assert path.read_bytes().splitlines()[: len(lines)] == lines
    found = {row["name"]: row["found"] for row in map(json.loads, path.read_bytes().splitlines())}
    assert [found[f"set of {one.count} on 3 texts"] for one in whole] == json.loads(
        json.dumps([one.to_dict() for one in whole])
    )
    monkeypatch.setattr("tinytf.cause.restoring._left", None)  # nothing is measured again
    assert model.restoring(texts, other, gains, share=0.9999, resume=path) == whole


def test_a_budget_is_continued_and_another_one_measures_its_plan_alone(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, texts = tmp_path / "kept.ndjson", [SENTENCE, OTHER]
    whole, other = model.budget(texts, 10**6), model.budget(texts, 38_000)
    with pytest.raises(KeyboardInterrupt):
        model.budget(texts, 10**6, resume=path, on_progress=after(1))
    lines = path.read_bytes().splitlines()
    assert len(lines) == 1
    assert model.budget(texts, 10**6, resume=path) == whole
    assert path.read_bytes().splitlines()[:1] == lines
    assert model.budget(texts, 38_000, resume=path) == other
    assert whole.kept != other.kept
    assert len(path.read_bytes().splitlines()) == 2 + 2 + 2  # both texts alone, and both in each of two plans
    monkeypatch.setattr("tinytf.cause.budget._kl", None)  # nothing is measured again
    assert model.budget(texts, 38_000, resume=path) == other


def test_the_maps_of_an_interrupted_sweep_are_empty_where_nothing_was_measured(model: Model) -> None:
    whole, part = (model.ablate_sweep(SENTENCE, **how) for how in ({}, {"on_progress": after(2)}))
    there = ~part.change.isnan()
    assert 0 < int(there.sum()) == len(part.measured) < part.change.numel()
    assert torch.equal(part.change[there], whole.change[there])
    whole, part = (model.patch_sweep(SENTENCE, OTHER, **how) for how in ({}, {"on_progress": after(2)}))
    there = ~part.values.isnan()
    assert part.first < int(there.sum()) == part.measured < part.values.numel()
    assert torch.equal(part.values[there], whole.values[there])
    assert all(value == value for *_, value in part.strongest(1000))


def test_integrated_gradients_keep_their_points(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinytf.gradients.saliency.SHARE", 1e-4)  # so that more points are needed than at first
    path = tmp_path / "kept.ndjson"
    whole = model.backward(SENTENCE, integrated=True)
    part = model.backward(SENTENCE, integrated=True, resume=path, on_point=after(1))
    assert part.interrupted
    assert part.integrated.points < whole.integrated.points
    assert len(path.read_text("ascii").splitlines()) == part.integrated.points
    again = model.backward(SENTENCE, integrated=True, resume=path)
    assert again.integrated == whole.integrated
    assert len(path.read_text("ascii").splitlines()) == whole.integrated.points


def test_a_file_that_was_torn_loses_one_line_and_another_measurement_none(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kept.ndjson"
    whole = model.ablate_sweep(SENTENCE, resume=path)
    data = path.read_bytes()
    for size in range(len(data) - 40, len(data), 7):
        path.write_bytes(data[:size])  # as a process leaves it that is killed while it writes
        assert torch.allclose(model.ablate_sweep(SENTENCE, resume=path).change, whole.change, atol=1e-5)
        assert len(path.read_bytes().splitlines()) == len(data.splitlines())
    before = path.read_bytes()
    model.ablate_sweep(OTHER, resume=path)
    model.ablate_sweep(SENTENCE, "layers", resume=path)
    model.ablate_sweep(SENTENCE, target=5, resume=path)
    rest = path.read_bytes().removeprefix(before)
    assert len(rest.splitlines()) == 2 * whole.change.numel() + model.config.n_layers


def test_numbers_of_other_weights_are_not_taken(model: Model, changed: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "kept.ndjson", load(str(changed))
    model.ablate_sweep(SENTENCE, resume=path)
    assert torch.equal(other.ablate_sweep(SENTENCE, resume=path).change, other.ablate_sweep(SENTENCE).change)


@pytest.mark.parametrize("data", [b"mine\n", b"mine", b'{"of": 1}\n', b"[1]\n", b"\xff\xfe\n", b"{" * 5000 + b"\n"])
def test_any_other_file_is_refused_and_stays(tinytf: Tinytf, decoder: Path, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "mine.ndjson"
    path.write_bytes(data)
    ran = tinytf("ablate", SENTENCE, "-m", decoder, "--sweep", "heads", "--resume", path)
    assert is_a_clean_error(ran)
    assert str(path) in ran.err
    assert path.read_bytes() == data


def test_resume_needs_something_to_continue_and_a_place(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.ndjson"
    for given in (
        ("ablate", SENTENCE, "--at", "L0H1"),
        ("patch", SENTENCE, OTHER, "--at", "L0H1"),
        ("grad", SENTENCE),
    ):
        ran = tinytf(*given, "-m", decoder, "--resume", path)
        assert is_a_clean_error(ran)
        assert "--resume goes with" in ran.err
    for wrong in (tmp_path / "none" / "kept", tmp_path, decoder / "kept.ndjson"):
        assert is_a_clean_error(tinytf("ablate", SENTENCE, "--sweep", "heads", "-m", decoder, "--resume", wrong))
    assert list(tmp_path.glob("*.ndjson")) == []


def interrupting(monkeypatch: pytest.MonkeyPatch, where: str, calls: int) -> None:
    """Press Ctrl-C at a call of a function that measures."""
    import importlib

    place, _, name = where.rpartition(".")
    module = importlib.import_module(place)
    genuine, left = getattr(module, name), iter(range(calls - 1, -1, -1))

    def pressed(*given: Any, **more: Any) -> Any:
        if not next(left, 1):
            signal.raise_signal(signal.SIGINT)
        return genuine(*given, **more)

    monkeypatch.setattr(module, name, pressed)


def test_control_c_in_a_sweep_shows_what_is_done_and_ends_in_130(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("ablate", SENTENCE, "--sweep", "heads", "-m", decoder)
    interrupting(monkeypatch, "tinytf.cause.interventions.ablate.effects", 3)
    ran = tinytf(*given, "--resume", tmp_path / "kept.ndjson")
    assert (ran.status, ran.err) == (130, "tinytf: interrupted\n")
    assert "stopped after 2 of 4 heads" in ran.out
    assert len((tmp_path / "kept.ndjson").read_text("ascii").splitlines()) == 2
    monkeypatch.undo()
    assert "stopped" not in tinytf(*given, "--resume", tmp_path / "kept.ndjson").out


def test_control_c_leaves_ndjson_that_says_so_and_no_second_text_begins(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text(f"{SENTENCE}\n{OTHER}\n", "utf-8")
    interrupting(monkeypatch, "tinytf.cause.interventions.ablate.effects", 3)
    ran = tinytf("ablate", "--lines", "--sweep", "heads", "-m", decoder, "--format", "ndjson",
                 stdin=(tmp_path / "texts.txt").read_bytes())  # fmt: skip
    events = [json.loads(line) for line in ran.lines]
    assert ran.status == 130
    assert events[0]["interrupted"] is True
    assert [event["type"] for event in events].count("ablate_sweep") == 1
    assert sum(event["type"] == "effect" for event in events) == 2
    assert events[-1]["type"] == "interrupted"


def test_control_c_in_integrated_gradients_shows_the_points_so_far(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinytf.gradients.saliency.SHARE", 1e-6)
    interrupting(monkeypatch, "tinytf.gradients.saliency.tap_steps", 2)
    ran = tinytf("grad", SENTENCE, "--integrated", "-m", decoder, "--all")
    assert ran.status == 130
    assert "9 points, interrupted)" in " ".join(ran.out.split())
