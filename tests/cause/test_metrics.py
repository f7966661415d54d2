"""Every metric of a patch, an ablation and an estimate, against plain hooks on float64 models and formulas of torch."""

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import asked, config_of, encoding_of, lively, some_ids
from torch import Tensor
from torch.nn import functional as F

import tinytf
from tinytf.api import Model
from tinytf.cause.over_pairs import ablate_over, attribute_over, patch_estimate_pairs, patch_over
from tinytf.errors import UsageError
from tinytf.metric import METRICS
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

KINDS = ["gpt2", "llama, grouped", "gemma 2, norms around each part and windows by layer", "bert with a masked head",
         "deepseek, latent keys and values", "one key head for all"]  # fmt: skip
A, B, SEVERAL, PLACE = 3, 4, (7, 9, 11), 2
"""The answer, the token that it is compared with, an answer of several tokens, and the position that is patched."""
Logits = Callable[[Tensor], Tensor]


def by_hand(name: str, clean: Tensor, ids: Sequence[int], read: int, answer: Sequence[int] = (A,)) -> Logits:
    """A metric of the logits (T, V) of a run, from what PyTorch has; ``clean`` are the logits of the clean run."""
    log_p = F.log_softmax(clean[read], -1)

    def js(logits: Tensor) -> Tensor:
        p, q = log_p.exp(), logits[read].softmax(-1)
        middle = (p + q) / 2
        return (F.kl_div(middle.log(), p, reduction="sum") + F.kl_div(middle.log(), q, reduction="sum")) / 2

    return {
        "logit_diff": lambda logits: logits[read, A] - logits[read, B],
        "logit": lambda logits: logits[read, A],
        "log_prob": lambda logits: sum(F.log_softmax(logits[read + i], -1)[token] for i, token in enumerate(answer)),
        "prob": lambda logits: F.softmax(logits[read], -1)[list(SEVERAL)].sum(),
        "kl": lambda logits: F.kl_div(F.log_softmax(logits[read], -1), log_p, log_target=True, reduction="sum"),
        "js": js,
        "rank": lambda logits: (logits[read].sort(descending=True).indices == A).nonzero()[0, 0] + 1.0,
        "loss": lambda logits: F.cross_entropy(logits[:-1], torch.tensor(ids[1:])),
    }[name]  # type: ignore[return-value]


def settings(name: str) -> dict[str, Any]:
    answers: dict[str, Any] = {"": {}, "one": {"answer": A}, "set": {"answer": SEVERAL}, "text": {"answer": A}}
    return {"metric": name, **answers[METRICS[name].answer], **({"versus": B} if METRICS[name].versus else {})}


@contextmanager
def input_of(block: Any, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Pass what a block takes, (1, T, C), through ``change``."""
    handle = block.register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))
    yield
    handle.remove()


class Texts:
    """Two texts of a model, what its second block takes in both, and the logits of a run with a part of it."""

    def __init__(self, kind: str, more: Sequence[int] = ()) -> None:
        self.model = lively(config_of(kind)).double()
        self.ids = [[*some_ids(self.model.config, 1, 9, seed=seed)[0].tolist(), *more] for seed in (5, 6)]
        mask = None if self.model.config.causal else 1
        self.read = 8
        if mask is not None:
            self.ids = [[*(2 if token == mask else token for token in ids[:-1]), mask] for ids in self.ids]
        self.ours = asked(self.model, mask)
        short = [ids[: len(ids) - len(more)] for ids in self.ids]
        self.clean, self.corrupt = (record(self.model, encoding_of(ids), mask) for ids in short)
        self.taken: list[Tensor] = []
        for ids in self.ids:
            with input_of(self.model.blocks[1], lambda x: self.taken.append(x) or x):
                self.run(ids)

    def run(self, ids: Sequence[int]) -> Tensor:
        with torch.no_grad():
            return self.model(torch.tensor([list(ids)]))[0]

    def patched(self, share: float = 1.0) -> Tensor:
        """The corrupt run, moved by a share of the way to the clean run at one place."""

        def change(x: Tensor) -> Tensor:
            x = x.clone()
            x[:, PLACE] += share * (self.taken[0] - self.taken[1])[:, PLACE]
            return x

        with input_of(self.model.blocks[1], change):
            return self.run(self.ids[1])

    def ablated(self) -> Tensor:
        """The clean run without L1H2."""

        def change(x: Tensor) -> Tensor:
            x = x.unflatten(-1, (self.model.config.n_heads, -1)).clone()
            x[:, :, 2] = 0.0
            return x.flatten(-2)

        block: Any = self.model.blocks[1]
        with input_of(block.attention.o, change):
            return self.run(self.ids[0])


def has(kind: str, name: str) -> bool:
    return name != "loss" or not kind.startswith("bert")


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_moves_each_metric_as_plain_hooks_do(kind: str, name: str) -> None:
    texts = Texts(kind)
    if not has(kind, name):
        with pytest.raises(UsageError, match="predicts no next token"):
            texts.ours.patch(texts.clean, texts.corrupt, "L1.in", metric=name)
        return
    clean, corrupt = map(texts.run, texts.ids)
    metric = by_hand(name, clean, texts.ids[0], texts.read)
    found = texts.ours.patch(texts.clean, texts.corrupt, "L1.in", positions=[PLACE], **settings(name))
    for value, logits in (
        (found.contrast.clean, clean), (found.contrast.corrupt, corrupt), (found.value, texts.patched())
    ):  # fmt: skip
        assert value == pytest.approx(float(metric(logits)), abs=1e-9)
    assert all(check.holds for check in found.checks)
    share = (metric(texts.patched()) - metric(corrupt)) / (metric(clean) - metric(corrupt))
    assert found.recovered == pytest.approx(float(share), rel=1e-7, abs=1e-7)
    swept = texts.ours.patch_sweep(texts.clean, texts.corrupt, **settings(name))
    assert float(swept.values[1, PLACE]) == pytest.approx(found.value, abs=1e-9)
    contrast = found.fields()["contrast"]["metric"]
    assert (contrast["name"], contrast["unit"]) == (name, METRICS[name].unit)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_ablation_moves_each_metric_as_plain_hooks_do(kind: str, name: str) -> None:
    texts = Texts(kind)
    if not has(kind, name):
        return
    plain = texts.run(texts.ids[0])
    metric = by_hand(name, plain, texts.ids[0], texts.read)
    followed = {("target" if word == "answer" else word): value for word, value in settings(name).items()}
    found = texts.ours.ablate(texts.clean, "L1H2", **followed)
    assert found.effect.before == pytest.approx(float(metric(plain)), abs=1e-9)
    assert found.effect.after == pytest.approx(float(metric(texts.ablated())), abs=1e-9)
    swept = texts.ours.ablate_sweep(texts.clean, **followed)
    assert dict(swept.measured)["L1H2"].after == pytest.approx(found.effect.after, abs=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("bert")])
def test_an_answer_of_several_tokens_is_read_where_each_is_predicted(kind: str) -> None:
    texts = Texts(kind, SEVERAL[:-1])
    clean, corrupt = map(texts.run, texts.ids)
    metric = by_hand("log_prob", clean, texts.ids[0], texts.read, SEVERAL)
    asked_for: dict[str, Any] = {"metric": "log_prob", "answer": SEVERAL}
    found = texts.ours.patch(texts.clean, texts.corrupt, "L1.in", positions=[PLACE], **asked_for)
    assert found.contrast.clean == pytest.approx(float(metric(clean)), abs=1e-9)
    assert found.contrast.corrupt == pytest.approx(float(metric(corrupt)), abs=1e-9)
    assert found.value == pytest.approx(float(metric(texts.patched())), abs=1e-9)
    swept = texts.ours.patch_sweep(texts.clean, texts.corrupt, **asked_for)
    assert float(swept.values[1, PLACE]) == pytest.approx(found.value, abs=1e-9)
    assert all(check.holds for check in swept.checks)
    ablated = texts.ours.ablate(texts.clean, "L1H2", target=SEVERAL)
    assert ablated.effect.after == pytest.approx(float(metric(texts.ablated())), abs=1e-9)


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].differentiable])
@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_is_the_slope_of_the_metric(kind: str, name: str) -> None:
    texts = Texts(kind)
    if not has(kind, name):
        return
    metric, step = by_hand(name, texts.run(texts.ids[0]), texts.ids[0], texts.read), 1e-4
    slope = float(metric(texts.patched(step)) - metric(texts.patched(-step))) / (2 * step)
    found = texts.ours.patch_estimate(texts.clean, texts.corrupt, "residual", **settings(name))
    estimated = float(found.values[1, PLACE]) - found.contrast.corrupt
    assert estimated == pytest.approx(slope, rel=1e-5, abs=1e-8)
    assert all(check.holds for check in found.checks)


def test_a_function_of_the_logits_and_of_the_clean_run_is_a_metric() -> None:
    texts = Texts("llama, grouped")

    def entropy(logits: Tensor) -> Tensor:
        return -(logits[-1].softmax(-1) * logits[-1].log_softmax(-1)).sum()

    def kl(logits: Tensor, clean: Trace) -> Tensor:
        log_p = clean["logits"][-1].log_softmax(-1)
        return F.kl_div(logits[-1].log_softmax(-1), log_p, log_target=True, reduction="sum")

    found = texts.ours.patch(texts.clean, texts.corrupt, "L1.in", positions=[PLACE], metric=entropy)
    assert found.value == pytest.approx(float(entropy(texts.patched())), abs=1e-9)
    assert found.fields()["contrast"]["metric"]["name"] == "entropy()"
    mine = texts.ours.patch_estimate(texts.clean, texts.corrupt, metric=kl)
    named = texts.ours.patch_estimate(texts.clean, texts.corrupt, metric="kl")
    assert torch.allclose(mine.values, named.values, atol=1e-9)
    assert texts.ours.ablate(texts.clean, "L1H0", metric=kl).effect.after == pytest.approx(
        texts.ours.ablate(texts.clean, "L1H0", metric="kl").effect.after, abs=1e-9
    )


def test_what_no_metric_takes_is_refused_by_name(tmp_path: Path) -> None:
    texts, function = Texts("gpt2"), lambda logits: logits[-1, 0]
    both = texts.clean, texts.corrupt
    for message, ask in {
        "there is no metric 'logit_dif'": lambda: texts.ours.patch(*both, "L1H0", metric="logit_dif"),
        "kl takes no answer": lambda: texts.ours.patch(*both, "L1H0", metric="kl", answer=A),
        "log_prob takes no versus": lambda: texts.ours.patch(*both, "L1H0", metric="log_prob", versus=B),
        "rank has no gradient": lambda: texts.ours.patch_estimate(*both, metric="rank", answer=A),
        "cannot be resumed": lambda: texts.ours.patch_sweep(*both, metric=function, resume=tmp_path / "kept"),
        "returned no single number": lambda: texts.ours.patch(*both, "L1H0", metric=lambda logits: logits[-1]),
        "a function takes no answer": lambda: texts.ours.patch(*both, "L1H0", metric=function, answer=A),
        "is no metric": lambda: texts.ours.patch(*both, "L1H0", metric=7),
    }.items():
        with pytest.raises(UsageError, match=message):
            ask()
    one = record(texts.model, encoding_of([3]))
    with pytest.raises(UsageError, match="a text of one token has no loss"):
        texts.ours.ablate(one, "L1H0", metric="loss")


def test_a_rank_and_an_unmoved_divergence_have_whole_values_and_zero() -> None:
    texts = Texts("gpt2")
    found = texts.ours.ablate_sweep(texts.clean, metric="kl")
    assert {effect.before for _, effect in found.measured} == {0.0}
    assert all(effect.after == pytest.approx(effect.kl, abs=1e-12) for _, effect in found.measured)
    ranks = texts.ours.ablate_sweep(texts.clean, metric="rank", target=A)
    assert all(effect.after == int(effect.after) >= 1 for _, effect in ranks.measured)


@pytest.fixture(scope="module")
def tiny() -> Model:
    return tinytf.load("tiny", dtype="float64")


PAIRS = [
    {"clean": "The cat lost the ball. The cat lost the", "corrupt": "The cat lost the hat. The cat lost the",
     "answer": " ball", "versus": " hat"},
    {"clean": "The dog lost the hat. The dog lost the", "corrupt": "The dog lost the ball. The dog lost the",
     "answer": " hat and the", "versus": " ball"},
    {"clean": "The dog found the hat. Then the dog lost the",
     "corrupt": "The dog found the ball. Then the dog lost the", "answer": " hat", "versus": " ball"},
]  # fmt: skip


def test_over_pairs_each_answer_is_read_to_its_end(tiny: Model) -> None:
    """Log-probabilities with whole inputs of the second layer exchanged, by hooks on its block."""
    moved, plain = [], []
    for pair in PAIRS:
        answer = [token.id for token in tiny.tokenizer.encode(pair["answer"], special=False).tokens]
        runs = [[*tiny.encode(pair[side]).ids, *answer[:-1]] for side in ("clean", "corrupt")]

        def log_p(ids: list[int], answer: list[int] = answer) -> float:
            with torch.no_grad():
                rows = tiny.transformer(torch.tensor([ids]))[0, -len(answer) :].log_softmax(-1)
            return float(rows[range(len(answer)), answer].sum())

        block: Any = tiny.transformer.blocks[1].attention.o
        values: list[Tensor] = []
        keep = block.register_forward_pre_hook(lambda _, args, values=values: values.append(args[0]))
        leads = [log_p(ids) for ids in runs]
        keep.remove()
        columns = slice(0, values[0].shape[-1] // tiny.config.n_heads)  # the first head

        def put(_: Any, args: Any, clean: Tensor = values[0], columns: slice = columns) -> Any:
            x = args[0].clone()
            x[..., columns] = clean[..., columns]
            return (x,)

        handle = block.register_forward_pre_hook(put)
        moved.append(log_p(runs[1]) - leads[1])
        handle.remove()
        plain.append(leads)
    found = patch_over(tiny, PAIRS, "L1H0", metric="log_prob")
    assert [[one.clean_lead, one.corrupt_lead] for one in found.examples] == [pytest.approx(row) for row in plain]
    assert found.quantities[0].values[:, 0].tolist() == pytest.approx(moved, abs=1e-9)
    expected = math.fsum(moved) / math.fsum(clean - corrupt for clean, corrupt in plain)
    assert found.strongest_mean.value == pytest.approx(expected)
    assert found.right is None
    assert found.to_dict()["metric"] == {"name": "log_prob", "unit": "nats"}
    assert all(check.holds for check in found.checks)


@pytest.mark.parametrize("name", METRICS)
def test_over_pairs_each_value_is_that_of_the_pair_alone(tiny: Model, name: str) -> None:
    pairs = [pair for pair in PAIRS if METRICS[name].answer != "one" or pair["answer"] != " hat and the"]
    more = {"answer": "ball,hat"} if name == "prob" else {}
    found, swept = patch_over(tiny, pairs, "L1H0", metric=name, **more), ablate_over(tiny, pairs, "L1H0", metric=name,
                                                                                  **more)  # fmt: skip
    for number, pair in enumerate(pairs):
        given = {"answer": more.get("answer", pair["answer"])} if METRICS[name].answer else {}
        versus = {"versus": pair["versus"]} if METRICS[name].versus else {}
        alone = tiny.patch(pair["clean"], pair["corrupt"], "L1H0", metric=name, **given, **versus)
        moved = float(found.quantities[0].values[number, 0])
        assert moved == pytest.approx(alone.value - alone.contrast.corrupt, abs=1e-8)
        target = {"target": given["answer"]} if given else {}
        without = tiny.ablate(pair["clean"], "L1H0", metric=name, **target, **versus)
        assert float(swept.quantities[0].values[number, 0]) == pytest.approx(without.effect.change, abs=1e-8)
    if METRICS[name].differentiable:
        estimated = patch_estimate_pairs(tiny, pairs, "heads", metric=name, exact=True, **more)
        assert estimated.agreement is not None
        assert (estimated.agreement.rank_correlation or 0) > 0.5
    else:
        with pytest.raises(UsageError, match="has no gradient"):
            patch_estimate_pairs(tiny, pairs, "heads", metric=name)


@pytest.mark.parametrize("name", ["logit", "log_prob", "kl"])
def test_over_pairs_parts_are_those_of_each_text(tiny: Model, name: str) -> None:
    pairs = [pair for pair in PAIRS if pair["answer"] != " hat and the"]
    found = attribute_over(tiny, pairs, metric=name)
    for number, pair in enumerate(pairs):
        token = {"token": pair["answer"]} if METRICS[name].answer else {}
        parts = {part.name: part.value for part in tiny.attribute(pair["clean"], metric=name, **token).parts}
        for row, value in zip(found.rows, found.quantities[0].values[number].tolist(), strict=True):
            assert value == pytest.approx(parts[row.name], abs=1e-8)
    assert found.fields()["metric"]["name"] == name
    assert all(check.holds for check in found.checks)


@pytest.mark.parametrize("name", ["log_prob", "prob", "kl", "js", "loss"])
def test_a_circuit_keeps_a_share_of_any_metric(tiny: Model, name: str) -> None:
    more = {"answer": "ball,hat"} if name == "prob" else {}
    found = tiny.circuit(PAIRS, metric=name, left_out=0, steps=2, **more)
    plain = patch_over(tiny, PAIRS, "L1H0", metric=name, **more)
    for mean, leads in ((found.clean, plain.leads[0]), (found.corrupt, plain.leads[1])):
        assert mean.value == pytest.approx(leads.value, abs=1e-8)
    assert all(check.holds for check in found.checks)
    assert found.faithfulness.value >= 0.9
    assert found.to_dict()["metric"]["name"] == name


@pytest.mark.parametrize("name", ["logit", "logit_diff", "log_prob", "prob", "kl", "js"])
def test_parts_sum_to_the_gradient_of_the_metric_times_the_logits(name: str) -> None:
    """To first order: each part's own term is the slope of the metric as the stream after the norm moves by it."""
    texts = Texts("llama, grouped")
    asked_for = {"token" if word == "answer" else word: value for word, value in settings(name).items()}
    logits = texts.run(texts.ids[0])[-1]
    metric = by_hand(name, logits[None], [], 0)
    at = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(metric(at[None]), at)
    found = texts.ours.attribute(texts.clean, **asked_for)
    assert found.value == pytest.approx(float(metric(logits[None])), abs=1e-9)
    assert found.logit == pytest.approx(float(gradient @ logits), abs=1e-9)
    assert found.sum == pytest.approx(float(gradient @ logits), abs=1e-9)
    assert found.holds
    values: list[Tensor] = []
    keep = texts.model.blocks[1].attention.o.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda _, args: values.append(args[0][0, -1])
    )
    final = texts.model.final_norm.register_forward_pre_hook(lambda _, args: values.append(args[0][0, -1]))
    texts.run(texts.ids[0])
    keep.remove()
    final.remove()
    taken, stream = values
    block: Any = texts.model.blocks[1]
    width = len(taken) // texts.model.config.n_heads
    columns = slice(2 * width, 3 * width)
    added = block.attention.o.weight[:, columns] @ taken[columns]  # what L1H2 adds to the stream
    scale = (stream.pow(2).mean() + texts.model.config.norm_eps).rsqrt()
    moved = texts.model.unembed((added * scale * texts.model.final_norm.weight)[None])[0].detach()
    part = next(part for part in found.parts if part.name == "L1H2")
    assert part.value == pytest.approx(float(gradient @ moved), abs=1e-9)


@pytest.mark.parametrize("name", METRICS)
def test_a_curve_of_steering_follows_each_metric(name: str) -> None:
    texts = Texts("llama, grouped")
    vector = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ask = {"": [], "one": [A], "set": SEVERAL, "text": [A]}[METRICS[name].answer]
    ask = [A, B] if METRICS[name].versus else ask
    found = texts.ours.steer_curve(texts.clean, {"L0.out": vector}, strengths=(-1, 0, 2), ask=ask, metric=name)
    plain = texts.run(texts.ids[0])
    metric = by_hand(name, plain, texts.ids[0], texts.read)
    for dose in found.doses:
        with input_of(texts.model.blocks[1], lambda x, strength=dose.strength: x + strength * vector):
            assert dose.value == pytest.approx(float(metric(texts.run(texts.ids[0]))), abs=1e-9)
    assert found.check.holds
    assert found.fields()["metric"]["name"] == name


def test_a_report_by_a_function_can_be_pickled() -> None:
    texts = Texts("gpt2")
    found = texts.ours.patch(texts.clean, texts.corrupt, "L1H0", metric=lambda logits: logits[-1, 0])
    again = pickle.loads(pickle.dumps(found.contrast))
    assert again == found.contrast
    with pytest.raises(UsageError, match="pickled"):
        again.of(torch.zeros(1, 1, 31))
