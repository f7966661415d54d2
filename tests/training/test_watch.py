"""Any training loop of torch, watched: what its run says is what the loop computed, and the loop computes as before."""

import json
import math
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import STORY, metrics_of, train

import tinytf
from tinytf.errors import UsageError
from tinytf.runs.reader import read_history
from tinytf.runs.runs import RunReport
from tinytf.runs.verdict import verdict_of
from tinytf.training.data.baselines import COMPARED
from tinytf.training.recipe import Recipe
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.run import RunDisplay
from tinytf_cli.views.run import run as run_blocks


class Attention(nn.Module):
    """Attention as nanoGPT spells it out without a fused kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.dropout = heads, nn.Linear(width, 3 * width), nn.Dropout(0.1)

    def forward(self, x: Tensor, causal: bool = True) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(0 if causal else x.shape[1])
        weights = self.dropout(F.softmax(scores.masked_fill(~visible, -math.inf), -1))
        return (weights @ v).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), Attention(width, 2)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, causal: bool = True) -> Tensor:
        return x + self.mlp(self.norm(x + self.attn(self.norm(x), causal)))


class Net(nn.Module):
    """A model as other people write one; it returns logits and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 16)
        self.trunk = nn.ModuleDict({"h": nn.ModuleList(Block(16) for _ in range(2))})
        self.head = nn.Linear(16, 9)

    def forward(self, ids: Tensor, targets: Tensor, causal: bool = True) -> tuple[Tensor, Tensor]:
        x = self.embed(ids)
        for block in self.trunk["h"]:
            x = block(x, causal)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


Meddle = Callable[[int, Net], None]


def loop(run: Path | None, steps: int, *, before_pass: Meddle = lambda *_: None, before_step: Meddle = lambda *_: None,
         **settings: object) -> tuple[Net, list[float]]:  # fmt: skip
    """A plain loop, watched if there is a folder: the model and its losses."""
    torch.manual_seed(3)
    model, losses = Net(), list[float]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watch = None if run is None else tinytf.watch(model, optimizer, run=run, every=5, **settings)  # type: ignore[arg-type]
    if watch is not None:
        watch.__enter__()
    for number in range(steps):
        ids = torch.randint(9, (4, 13)).cumsum(1) % 9
        before_pass(number + 1, model)
        _, loss = model(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        before_step(number + 1, model)
        optimizer.step()
        losses.append(loss.item())
        if watch is not None:
            watch.step(loss)
    if watch is not None:
        watch.__exit__(None, None, None)
    return model, losses


def test_a_watched_loop_computes_as_before_and_its_run_is_what_it_computed(tmp_path: Path) -> None:
    norms: list[float] = []

    def note(_: int, model: Net) -> None:
        norms.append(float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()))

    alone, losses = loop(None, 12)
    watched, again = loop(tmp_path / "run", 12, before_step=note)
    assert losses == again
    assert all(torch.equal(p, q) for p, q in zip(alone.parameters(), watched.parameters(), strict=True))
    history = read_history(tmp_path / "run")
    assert history.loss.tolist() == losses
    assert history.grad_norm.tolist() == pytest.approx(norms, rel=1e-5)
    assert history.finished
    assert [step for step, _ in history.health] == [5, 10]


def test_layers_are_told_apart_with_gradients_updates_activations_and_attention(tmp_path: Path) -> None:
    seen: dict[str, Tensor] = {}

    def silence(step: int, model: Net) -> None:
        if step == 5:
            with torch.no_grad():
                model.trunk["h"][1].mlp[0].bias[:48] = -99.0  # three in four units never fire
            seen.update({name: p.detach().clone() for name, p in model.named_parameters()})

    def note(step: int, model: Net) -> None:
        if step == 5:
            seen.update({f"{name}.grad": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    def after(step: int, model: Net) -> None:
        silence(step, model)
        if step == 6:
            seen.update({f"{name}.after": p.detach().clone() for name, p in model.named_parameters()})

    loop(tmp_path, 6, before_pass=after, before_step=note)
    (line,) = [line for line in metrics_of(tmp_path) if "health" in line]
    for layer in (0, 1):
        names = [n for n in seen if n.startswith(f"trunk.h.{layer}.") and not n.endswith((".grad", ".after"))]
        gradient = torch.cat([seen[f"{name}.grad"].flatten() for name in names]).norm()
        change = torch.cat([(seen[f"{name}.after"] - seen[name]).flatten() for name in names]).norm()
        size = torch.cat([seen[name].flatten() for name in names]).norm()
        assert line["health"]["gradient_norm"][layer] == pytest.approx(float(gradient), rel=1e-3)
        assert line["health"]["update_ratio"][layer] == pytest.approx(float(change / size), rel=1e-3)
    assert line["health"]["dead"][1] >= 0.75 > line["health"]["dead"][0]
    entropy = np.array(line["heads"]["entropy"])
    assert entropy.shape == (2, 2)
    assert ((entropy > 0.9) & (entropy <= 1.01)).all()  # near uniform so early


def test_a_jump_of_the_loss_is_told_with_the_tensor_and_the_step_where_it_began(tmp_path: Path) -> None:
    def burst(step: int, model: Net) -> None:
        if step == 70:
            matrix = model.trunk["h"][0].mlp[2].weight
            assert matrix.grad is not None
            with torch.no_grad():
                matrix.grad.mul_(1e4)
                matrix.add_(torch.randn(matrix.shape) * 9)

    loop(tmp_path, 75, before_step=burst)
    (said,) = [text for _, text in read_history(tmp_path).milestones]
    assert said.startswith("the loss jumped from ")
    assert "; at step 70 the gradient of trunk.h.0.mlp.2.weight was " in said


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("trunk.h.1.mlp.0.weight", "in the weights trunk.h.1.mlp.0.weight"),
        ("norm", "in trunk.h.1.norm (LayerNorm)"),
        ("gradient", "in the gradient of trunk.h.0.attn.qkv.weight"),
    ],
)
def test_a_number_that_is_not_finite_is_told_once_with_its_first_module(where: str, words: str, tmp_path: Path) -> None:
    def before_pass(step: int, model: Net) -> None:
        if step == 3 and where == "norm":
            model.trunk["h"][1].norm.eps = math.nan
        elif step == 3 and where != "gradient":
            model.get_parameter(where).data[1] = math.nan

    def before_step(step: int, model: Net) -> None:
        if step == 3 and where == "gradient":
            model.trunk["h"][0].attn.qkv.weight.grad[0, 0] = math.inf  # type: ignore[index]

    loop(tmp_path, 6, before_pass=before_pass, before_step=before_step)
    ((step, said),) = read_history(tmp_path).milestones
    assert step == 3
    assert said.endswith(f"; the first number that is not finite is {words}")
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text("ascii").replace("is NaN", "")


def test_a_loop_goes_on_in_its_folder_and_own_numbers_and_held_out_losses_are_kept(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.arange(12).reshape(2, 6) % 9
    for done in (0, 2):
        with tinytf.watch(model, optimizer, run=tmp_path / "run", steps=4, done=done) as watch:
            for _ in range(2):
                optimizer.zero_grad()
                model(ids, ids)[1].backward()
                optimizer.step()
                watch.step(temperature=0.5)  # the loss is what the model returned
            watch.held_out(1.25 + done)
    history = read_history(tmp_path / "run")
    assert history.step.tolist() == [1, 2, 3, 4]
    assert np.isfinite(history.loss).all()
    assert list(history.held_out) == [(2, 1.25), (4, 3.25)]
    assert metrics_of(tmp_path / "run")[0]["own"] == {"temperature": 0.5}


def test_no_other_folder_is_written_to_and_no_such_run_is_trained_on(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="there is no run in"), tinytf.watch(model, optimizer, run=tmp_path / "mine"):
        pass
    other = tinytf.watch(model, optimizer, run=tmp_path / "run", overwrite=True)
    with tinytf.watch(model, optimizer, run=tmp_path / "run"), pytest.raises(UsageError, match="another process"):
        other.__enter__()
    with pytest.raises(UsageError, match="another program trains"):
        train(STORY, Recipe(), tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_model_of_transformers_is_filmed_through_its_trainers_callback(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    tokenizer = tinytf.load("tiny").tokenizer
    model = GPT2LMHeadModel(GPT2Config(vocab_size=tokenizer.vocab_size, n_embd=16, n_layer=2, n_head=2, n_positions=32,
                                       bos_token_id=0, eos_token_id=0))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    opened = tinytf.load(model, tokenizer)
    text = "The cat sat on the mat. The dog ran."
    callback = tinytf.trainer_callback(tmp_path / "run", every=2, opened=opened, text=text)
    handler = CallbackHandler([callback], model, tokenizer, optimizer, None)
    state, control = TrainerState(max_steps=4), TrainerControl()
    ids = torch.tensor([opened.tokenizer.encode(text).ids])
    handler.on_train_begin(None, state, control)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        losses.append(model(input_ids=ids, labels=ids).loss)
        losses[-1].backward()
        optimizer.step()
        handler.on_step_end(None, state, control)
    handler.on_evaluate(None, state, control, {"eval_loss": 2.5})
    handler.on_train_end(None, state, control)
    history = read_history(tmp_path / "run")
    assert history.loss.tolist() == [loss.item() for loss in losses]
    assert history.held_out[-1] == (4, 2.5)
    film = tinytf_film(tmp_path / "run")
    assert [frame.step for frame in film.frames] == [0, 1, 2, 4]
    with torch.no_grad():
        log_p = model.eval()(ids).logits[0].log_softmax(-1)
    assert film.frames[-1].loss["unseen 1"][0] == pytest.approx(-float(log_p[0, ids[0, 1]]), abs=1e-3)


def tinytf_film(run: Path):
    from tinytf.runs.film import read_film

    return read_film(run)


def test_the_recipe_of_a_watched_run_names_the_model_and_how_far_it_went(tmp_path: Path) -> None:
    loop(tmp_path, 3)
    recipe = json.loads((tmp_path / "recipe.json").read_text("utf-8"))
    assert (recipe["watched"], recipe["steps"], recipe["lr"]) == ("Net", 3, 3e-3)


def board_of(run: Path) -> str:
    report = RunReport("run", run, read_history(run))
    return "\n".join(paint(run_blocks(report, Terminal(), RunDisplay()), Terminal()))


def test_nothing_is_said_of_the_rest_of_a_loop_that_planned_no_steps(tmp_path: Path) -> None:
    """Neither while it trains, nor once an error has ended it; one that ends by itself is finished."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for name, planned, ends in (("a", 0, True), ("b", 0, False), ("c", 40, False)):
        run = tmp_path / name
        with suppress(ZeroDivisionError), tinytf.watch(model, optimizer, run=run, steps=planned) as watch:
            for step in range(6):
                model(counted(step)[:, :-1], counted(step)[:, 1:])[1].backward()
                optimizer.step()
                watch.step(1.0)
                history = read_history(run)
                assert (history.planned, history.finished) == (planned or None, False)
                assert (history.seconds_left is None) or planned
            assert ("of 40" in board_of(run)) == (planned == 40)
            assert planned or not re.search(r"step \d+ of|%|left", board_of(run))
            assert ends or 1 / 0
        history = read_history(run)
        assert (history.finished, history.planned) == (ends, 6 if ends else planned or None)
        summary = RunReport("run", run, history).summary()
        assert (summary["state"] == "finished", summary["steps"]) == (ends, history.planned)


class Operations(TorchDispatchMode):
    """Keeps the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_pass_at_which_nothing_is_due_runs_the_models_operations_alone(tmp_path: Path) -> None:
    """Reading a number of a tensor would be one more, and on a GPU a wait."""
    passes: list[list[str]] = []
    for run in (None, tmp_path / "run"):
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        with tinytf.watch(model, optimizer, run=run, every=40) if run else nullcontext() as watch:
            for step in range(COMPARED + 2):
                with Operations() as operations:
                    _, loss = model(counted(step)[:, :-1], counted(step)[:, 1:])
                if watch is not None:
                    loss.backward()
                    optimizer.step()
                    watch.step(loss)
        passes.append([name for name in operations.names if "detach" not in name])  # the loss, kept for the step
    assert passes[0] == passes[1]
    assert len(passes[0]) > 20


def itself(ids: Tensor) -> Tensor:
    return ids[:, :-1]


def after_the_next(ids: Tensor) -> Tensor:
    return torch.cat([ids[:, 2:], torch.full_like(ids[:, :1], -100)], 1)


def counted(step: int) -> Tensor:
    """Numbers in order, in some of which a number is another."""
    draw = torch.Generator().manual_seed(step)
    ids = (torch.randint(9, (4, 1), generator=draw) + torch.arange(13)) % 9
    return torch.where(torch.rand(ids.shape, generator=draw) < 0.1, torch.randint(9, ids.shape, generator=draw), ids)


@pytest.mark.parametrize(
    ("fault", "targets", "causal", "batch_of", "lr"),
    [
        ("", lambda ids: ids[:, 1:], True, counted, 3e-3),
        ("", itself, False, counted, 3e-3),  # an encoder, which sees the token
        ("labels shifted wrongly", itself, True, counted, 3e-3),
        ("labels shifted wrongly", after_the_next, True, counted, 3e-3),
        ("data all the same", lambda ids: ids[:, 1:], True, lambda _: counted(0), 3e-3),
        ("stuck at ln V", lambda ids: ids[:, 1:], True, counted, 0.0),
        ("dead units", lambda ids: ids[:, 1:], True, counted, 1.0),
    ],
)
def test_a_watched_loop_gets_the_verdicts_that_its_data_allows(
    fault: str, targets: Callable[[Tensor], Tensor], causal: bool, batch_of: Callable[[int], Tensor], lr: float,
    tmp_path: Path,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    model = Net()
    torch.nn.init.normal_(model.head.weight, std=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    with tinytf.watch(model, optimizer, run=tmp_path / "run", every=25) as watch:
        for step in range(150):
            ids = batch_of(step)
            optimizer.zero_grad()
            model(ids[:, :-1], targets(ids), causal=causal)[1].backward()
            optimizer.step()
            watch.step()
            if step in (74, 149):
                watch.held_out(2.0)
    assert [step for step, _ in read_history(tmp_path / "run").held_out] == [75, 150]
    verdict = verdict_of(read_history(tmp_path / "run"))
    assert (verdict.fault if verdict else "") == fault
