"""The film of a run: its frames hold what the models of their steps really do, and tell what was learned when."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import FILMED, MODEL, RECIPE, STORY, changed, run_once

from tinytf.checkpoints.run import load_run
from tinytf.errors import CheckpointError, UsageError
from tinytf.generate.loop import stream
from tinytf.generate.samplers import Sampling
from tinytf.loading import load
from tinytf.look.heads.measures import repeated_tokens
from tinytf.runs.film import Film, Probe, read_film
from tinytf.text.tokenizer import Encoding, Token
from tinytf.trace.record import record
from tinytf.training.train import train
from tinytf_cli.views.frame import learned_words

CAUSAL = changed(FILMED, save_every=1, keep=9, frames=True)
MASKED = changed(
    RECIPE,
    model={**MODEL, "norm_order": "post", "embed_norm": True},
    tokenizer="wordpiece",
    objective="masked",
    steps=4,
)
run = run_once(CAUSAL)


@pytest.fixture(scope="module")
def film(run: Path) -> Film:
    return read_film(run)


def ids_of(run: Path) -> dict[str, tuple[list[int], list[int | None]]]:
    probes = json.loads((run / "frames" / "probes.json").read_text("utf-8"))["probes"]
    return {probe["name"]: (probe["ids"], probe["targets"]) for probe in probes}


def recorded(model, ids: list[int]):
    return record(model, Encoding("", tuple(Token(one, "", 0, 0, b"", False) for one in ids), ""))


def test_frames_are_taken_at_powers_of_two_at_checkpoints_and_at_the_end(tmp_path: Path) -> None:
    train(STORY, changed(CAUSAL, steps=11, save_every=3, frames=False), tmp_path / "run")
    assert [frame.step for frame in read_film(tmp_path / "run").frames] == [0, 1, 2, 3, 4, 6, 8, 9, 11]


def test_the_probes_are_the_starts_of_the_texts_and_tokens_said_twice(run: Path) -> None:
    tokenizer = load(str(run)).tokenizer
    said = {name: tokenizer.decode(ids) for name, (ids, _) in ids_of(run).items()}
    kept = np.fromfile(run / "tokens" / "held_out.bin", dtype=np.uint16)[:13].tolist()
    assert said["seen"] == STORY[:24]
    assert said["unseen"].startswith(tokenizer.decode(kept))
    assert said["twice"] == tokenizer.decode(kept[:12] + kept[:11])


@pytest.mark.parametrize("number", [1, -1])
def test_a_frame_holds_what_the_model_of_its_step_does(film: Film, run: Path, number: int) -> None:
    frame = film.frames[number]
    model = load_run(run / "checkpoints" / f"step-{frame.step:06d}")
    squares, units = [[], []], [[], []]
    for name, (ids, targets) in ids_of(run).items():
        trace = recorded(model, ids)
        logits = trace["logits"].double().numpy()
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        assert frame.loss[name] == pytest.approx(-np.log(p[np.arange(len(ids)), targets]), abs=1e-5)
        assert frame.mean(name) == pytest.approx(-np.log(p[np.arange(len(ids)), targets]).mean(), abs=1e-5)
        assert frame.top[name] == pytest.approx(-np.sort(-p, axis=1)[:, :5], abs=1e-5)
        streams = [trace["embed.out"], trace["L0.out"], trace["L1.out"]]
        assert frame.norms[name] == pytest.approx(
            np.stack([np.linalg.norm(one.double().numpy(), axis=-1) for one in streams]), rel=1e-4
        )
        maps = np.stack([trace[f"L{layer}.weights"].numpy() for layer in range(2)])
        assert frame.maps[name] == pytest.approx(maps, abs=1e-3)  # half precision
        for layer in range(2):
            squares[layer].append(streams[layer + 1].double().numpy() ** 2)
            units[layer].append(trace[f"L{layer}.ffn.act"].double().numpy())
    for layer in range(2):
        assert frame.rms[layer] == pytest.approx(math.sqrt(np.concatenate(squares[layer]).mean()), rel=1e-4)
        activations = np.concatenate(units[layer])
        dead = np.abs(activations).max(axis=0) < 0.01 * math.sqrt((activations**2).mean())
        assert frame.dead[layer] == pytest.approx(dead.mean())


def test_scores_of_heads_are_those_of_the_maps_by_hand(film: Film, run: Path) -> None:
    model, frame = load_run(run), film.frames[-1]
    length = 12
    entropy, previous, induction = (np.zeros((2, 2)) for _ in range(3))
    for ids in repeated_tokens(model.config.vocab_size, length, 4, CAUSAL.seed).tolist():
        trace = recorded(model, ids)
        for layer in range(2):
            for head, weights in enumerate(trace[f"L{layer}.weights"].double().numpy()):
                shares = [
                    -sum(w * math.log(w) for w in weights[q, : q + 1] if w > 0) / math.log(q + 1)
                    for q in range(1, len(ids))
                ]
                entropy[layer, head] += np.mean(shares) / 4
                previous[layer, head] += np.mean([weights[q, q - 1] for q in range(1, len(ids))]) / 4
                found = [weights[q, q - length + 1] for q in range(length, 2 * length)]
                induction[layer, head] += np.mean(found) / 4
    assert frame.heads["entropy"] == pytest.approx(entropy, abs=1e-5)
    assert frame.heads["previous"] == pytest.approx(previous, abs=1e-5)
    assert frame.heads["induction"] == pytest.approx(induction, abs=1e-5)


def test_health_is_that_of_the_gradient_and_of_the_change_of_the_weights(film: Film, run: Path) -> None:
    frame = next(frame for frame in film.frames if frame.step == 2)
    before, after = (load_run(run / "checkpoints" / f"step-00000{step}") for step in (1, 2))
    line = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[1])
    assert math.hypot(*frame.gradient_norm.tolist()) == pytest.approx(line["grad_norm"], rel=1e-4)
    theirs = dict(after.named_parameters())
    for place, prefix in enumerate(("blocks.0.", "blocks.1.", "")):
        names = [n for n, _ in before.named_parameters() if n.startswith(prefix) and (prefix or "blocks" not in n)]
        was = np.concatenate([before.get_parameter(n).detach().double().numpy().ravel() for n in names])
        now = np.concatenate([theirs[n].detach().double().numpy().ravel() for n in names])
        expected = np.linalg.norm(now - was) / np.linalg.norm(was)
        assert frame.update_ratio[place] == pytest.approx(expected, rel=1e-3)


def test_gradients_of_layers_are_those_of_the_batch(run: Path, film: Film) -> None:
    batch = train(STORY, changed(CAUSAL, steps=1, warmup=0), run.parent / "one").setup.examples.batch(1)
    model = load_run(run / "checkpoints" / "step-000001").train()
    logits = model(batch.ids)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
    frame = next(frame for frame in film.frames if frame.step == 2)
    for layer in range(2):
        norm = math.hypot(*(float(p.grad.norm()) for p in model.blocks[layer].parameters()))
        assert frame.gradient_norm[layer] == pytest.approx(norm, rel=1e-3)


def test_with_frames_the_model_of_every_frame_opens(run: Path, film: Film) -> None:
    assert film.frames[0].step == 0
    for frame in film.frames:
        assert frame.model is not None
    ids, targets = ids_of(run)["seen"]
    logits = recorded(load(str(film.frames[0].model)).transformer, ids)["logits"].log_softmax(dim=-1)
    losses = -logits[torch.arange(len(ids)), targets]
    assert film.frames[0].loss["seen"] == pytest.approx(losses.numpy(), abs=0.05)  # of weights in half precision
    kept = load_run(run / "frames" / "step-000004")
    whole = load_run(run / "checkpoints" / "step-000004")
    for name, parameter in whole.named_parameters():
        assert torch.equal(kept.get_parameter(name), parameter.to(torch.bfloat16).float())


def test_kinds_of_tokens_are_what_would_help_to_predict_them() -> None:
    tokens = ("The", "·c", "at", "·sat", ".", "·The", "·c", "at", "·met", "·To")
    probe = Probe("unseen", "", tokens, (*tokens[1:], "m"), (1.0,) * 10)
    assert probe.kinds == (
        "words", "spelling", "words", "punctuation", "names", "words", "spelling", "words", "names", "spelling",
    )  # fmt: skip


COPY = ("·a", "·b", "·c", "·d", "·e")
TWICE = Probe("twice", "", (*COPY, *COPY[:-1]), (*COPY[1:], *COPY), (9.0,) * 9)


def filmed(film: Film, probe: Probe, *losses: list[float]) -> Film:
    """The film of one probe with these losses in its frames, at steps 0, 1, 2 …"""
    frames = [replace(film.frames[0], step=step, loss={probe.name: np.array(loss)}) for step, loss in enumerate(losses)]
    return replace(film, probes=(probe,), frames=tuple(frames))


def test_only_the_second_copy_is_copied() -> None:
    assert TWICE.kinds == (*["words"] * 5, *["copying"] * 4)


@pytest.mark.parametrize(
    ("second", "by"),
    [([4.2, 4.186], None), ([4.1, 2.36], None), ([3.4, 3.04], 2), ([0.5, 0.1], 2)],
    ids=["0.03 nats", "0.99 nats", "1.0 nats", "nearly all"],
)
def test_copying_is_learned_where_the_second_copy_costs_a_nat_less(
    film: Film, second: list[float], by: int | None
) -> None:
    falling = [[6.0] * 9, [5.0] * 9, [4.22, 4.23, 4.22, 4.23, 4.2, *second, *second]]
    (one,) = filmed(film, TWICE, *falling).learned
    assert (one.kind, one.tokens, one.by) == ("copying", 4, by)
    assert one.gain == pytest.approx(4.225 - sum(second) / 2)
    assert one.last == pytest.approx(sum(second) / 2)


@pytest.mark.parametrize(
    ("losses", "by"),
    [([5.11, 5.04], None), ([9.0, 4.6], None), ([5.11, 4.5], 1), ([4.4, 4.5, 4.6], None), ([4.5, 4.6, 4.4, 4.3], 2)],
    ids=["hardly", "by half of its own way", "a nat", "lost again", "from then on"],
)
def test_names_are_learned_where_they_cost_a_nat_less_than_without_context(
    film: Film, losses: list[float], by: int | None
) -> None:
    probe = Probe("unseen", "", ("·a",) * 4, ("·Tom",) * 4, (5.5,) * 4)
    (one,) = filmed(film, probe, *([loss] * 4 for loss in losses)).learned
    assert (one.kind, one.by) == ("names", by)
    assert one.gain == pytest.approx(5.5 - losses[-1])


def test_of_three_tokens_it_is_not_said_that_they_are_learned(film: Film) -> None:
    few = filmed(film, Probe("unseen", "", ("·a",) * 3, ("·Tom",) * 3, (5.5,) * 3), [0.1] * 3)
    assert (few.learned[0].gain, few.learned[0].by) == (pytest.approx(5.4), None)
    assert "".join(span.text for span in learned_words(few)) == "nothing yet"


def test_text_to_train_on_tells_nothing_of_what_was_learned(film: Film) -> None:
    assert filmed(film, Probe("seen", "", ("·a",), ("·Tom",), (5.5,)), [0.1]).learned == ()


def test_what_a_token_costs_without_context_is_by_its_frequency_or_uniform(film: Film, run: Path) -> None:
    ids = np.fromfile(run / "tokens" / "train.bin", dtype=np.uint16).tolist()
    size = load_run(run).config.vocab_size
    for probe in film.probes:
        _, targets = ids_of(run)[probe.name]
        expected = [min(math.log(size), -math.log((ids.count(one) + 1) / (len(ids) + size))) for one in targets]
        assert probe.baseline == pytest.approx(expected)


def test_a_model_that_was_never_trained_has_learned_nothing(film: Film) -> None:
    for kind in film.positions:
        assert film.gain_of(kind, film.frames[0]) < 0.1


def test_each_frame_has_what_the_model_of_its_step_writes(run: Path, film: Film) -> None:
    assert list(film.samples) == [frame.step for frame in film.frames]
    for step in (1, 6):
        model = load(str(run / "checkpoints" / f"step-{step:06d}"))
        ids = model.tokenizer.encode(film.samples[step].prompt).ids
        sampling = Sampling(temperature=0.8)
        steps = stream(model.transformer, ids, max_tokens=40, sampling=sampling, seed=0, use_cache=False)
        assert film.samples[step].text == model.tokenizer.decode([token.id for token in steps])
    assert len({sample.text for sample in film.samples.values()}) > 1


def test_an_encoder_has_a_film_too(tmp_path: Path) -> None:
    train(STORY, MASKED, tmp_path / "run")
    film = read_film(tmp_path / "run")
    assert [frame.step for frame in film.frames] == [0, 1, 2, 4]
    for probe in film.probes:
        counted = np.isfinite(film.frames[0].loss[probe.name])
        assert counted.tolist() == [target is not None for target in probe.expected]
        assert film.frames[0].maps[probe.name].sum(axis=-1) == pytest.approx(1.0, abs=5e-3)


def test_without_looks_there_is_no_film(tmp_path: Path) -> None:
    train(STORY, changed(CAUSAL, probe_every=0, steps=2), tmp_path / "run")
    with pytest.raises(UsageError, match="has no film"):
        read_film(tmp_path / "run")


def test_a_damaged_frame_is_named(run: Path, tmp_path: Path) -> None:
    train(STORY, changed(CAUSAL, steps=2), tmp_path / "run")
    (tmp_path / "run" / "frames" / "step-000002.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"step-000002\.safetensors is damaged"):
        read_film(tmp_path / "run")
