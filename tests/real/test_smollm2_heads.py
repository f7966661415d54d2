"""SmolLM2's heads: the ones that the census finds, and what is lost without them."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import Tensor, nn

from tinytf.loading import Model
from tinytf.look.heads.census import Census
from tinytf.look.heads.measures import copy_losses, repeated_tokens
from tinytf.model.transformer import Transformer

pytestmark = pytest.mark.real

LENGTH, COUNT, TAKEN = 50, 2, 6
Place = tuple[int, int]


@pytest.fixture(scope="module")
def found(model: Model) -> Census:
    return model.heads(length=LENGTH, count=4, seed=1)


@contextmanager
def without(model: Transformer, heads: Collection[Place]) -> Iterator[None]:
    """The output of these heads is zero."""
    d_head = model.config.d_head

    def hook(module: nn.Module, args: tuple[Tensor], silent: list[int]) -> tuple[Tensor]:
        (concat,) = args  # (B, T, H·D)
        concat = concat.clone()
        for head in silent:
            concat[..., head * d_head : (head + 1) * d_head] = 0
        return (concat,)

    with ExitStack() as stack:
        for layer in {layer for layer, _ in heads}:
            silent = [head for at, head in heads if at == layer]
            where = model.blocks[layer].attention.o
            handle = where.register_forward_pre_hook(lambda module, args, silent=silent: hook(module, args, silent))
            stack.callback(handle.remove)
        yield


@torch.no_grad()
def second_loss(model: Transformer, heads: Collection[Place] = ()) -> float:
    """The loss in the second copy of sequences that the census has not seen."""
    ids = repeated_tokens(model.config.vocab_size, LENGTH, COUNT, seed=99)
    with without(model, heads):
        return sum(copy_losses(model(row[None]), row[None], LENGTH)[1] for row in ids) / COUNT


def highest(found: Census, score: str, how_many: int) -> list[Place]:
    values = found.score(score)
    order = values.flatten().argsort(descending=True)[:how_many].tolist()
    return [divmod(place, values.shape[1]) for place in order]


def test_previous_token_and_induction_heads_are_found(found: Census) -> None:
    names = [named.name for row in found.labels for named in row]
    assert names.count("induction") >= 3
    assert names.count("previous") >= 3
    assert found.first_loss > 10 > 4 > found.second_loss  # it says again what it has read
    first_inducing = min(layer for layer, row in enumerate(found.labels) for one in row if one.name == "induction")
    first_previous = min(layer for layer, row in enumerate(found.labels) for one in row if one.name == "previous")
    assert first_previous < first_inducing  # an induction head reads what a previous-token head has brought


@pytest.mark.exhaustive
def test_without_its_induction_heads_it_repeats_worse_than_without_as_many_others(model: Model, found: Census) -> None:
    inducing = highest(found, "induction", TAKEN)
    generator = torch.Generator().manual_seed(0)
    everyone = [(layer, head) for layer in range(model.config.n_layers) for head in range(model.config.n_heads)]
    others = [place for place in everyone if place not in inducing]
    transformer = model.transformer
    whole, ablated = second_loss(transformer), second_loss(transformer, inducing)
    draws = [torch.randperm(len(others), generator=generator)[:TAKEN].tolist() for _ in range(5)]
    at_random = [second_loss(transformer, [others[place] for place in draw]) for draw in draws]
    assert ablated - whole > 1
    assert ablated - whole > 3 * (sum(at_random) / len(at_random) - whole)
    assert ablated > max(at_random)
    assert second_loss(transformer) == pytest.approx(whole)
