"""Mistakes of a cache: each that can be made of a step is told from sound numbers, computed here pass by pass."""

from collections.abc import Callable

import pytest
import torch
from architectures import asked, config_of, lively
from torch import Tensor

from tinytf.compare.caches import cache_mistakes
from tinytf.steps.operations import Mask, Mix, Scores, ShortConv
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

START, TEXT = 4, "3 14 15 9 2 6 5"


def traced(kind: str, **changes: int) -> Trace:
    return asked(lively(config_of(kind, **changes))).trace(TEXT)


def site_of(trace: Trace, operation: type) -> Site:
    step, layer = next((step, layer) for step, layer in trace.steps.rows if type(step.operation) is operation)
    return Site(trace, step, layer)


def words_of(site: Site) -> dict[str, Callable[[Site], Tensor]]:
    return {one.words: one.wrong for one in cache_mistakes(site, START)}


@pytest.mark.parametrize("operation", [Mask, Scores, Mix])
def test_every_mistake_of_attention_leaves_the_first_pass_as_it_is(operation: type) -> None:
    site = site_of(traced("llama, grouped", window=0), operation)
    right = site.value
    for words, wrong in words_of(site).items():
        numbers = wrong(site)
        assert torch.allclose(numbers[:, :START], right[:, :START], atol=1e-5), words
        assert not torch.allclose(numbers[:, START:], right[:, START:], atol=1e-5), words


def test_values_of_the_token_before_are_mixed_as_by_hand() -> None:
    site = site_of(traced("llama, grouped"), Mix)
    weights, values = site.inputs()
    shared = len(weights) // len(values)
    numbers = words_of(site)["values are those of the token before, the first 0"](site)
    for head in range(len(weights)):
        for at in range(START, len(site.ids)):
            by_hand = sum(weights[head, at, key] * values[head // shared, key - 1] for key in range(1, at + 1))
            assert torch.allclose(numbers[head, at], torch.as_tensor(by_hand), atol=1e-6)


def test_a_key_that_is_cached_twice_has_twice_the_share() -> None:
    trace = traced("llama, grouped")
    site = site_of(trace, Mask)
    weights = words_of(site)["the last key of the first pass is cached twice"](site).softmax(-1)
    times = torch.ones(len(site.ids))
    times[START - 1] = 2
    by_hand = site.value.exp() * times
    by_hand = by_hand / by_hand.sum(-1, keepdim=True)
    assert torch.allclose(weights[:, START:], by_hand[:, START:], atol=1e-6)


def test_the_window_of_a_convolution_that_is_lost_is_of_zeros() -> None:
    trace = traced("lfm2, short convolutions around grouped attention")
    site = site_of(trace, ShortConv)
    numbers = words_of(site)["the window of the convolution of the tokens before 4 is lost"](site)
    alone = site.input().clone()
    alone[:, :START] = 0
    taps = site.module.weight.unflatten(0, (len(alone), -1))
    by_hand = sum(taps[..., tap] * alone[:, START - taps.shape[-1] + 1 + tap] for tap in range(taps.shape[-1]))
    assert torch.allclose(numbers[:, START], torch.as_tensor(by_hand), atol=1e-6)


@pytest.mark.parametrize("kind", ["mamba, a selective state space before a layer of attention"])
def test_a_state_that_is_lost_is_that_of_the_later_tokens_alone(kind: str) -> None:
    model = asked(lively(config_of(kind)))
    trace, later = model.trace(TEXT), model.trace(" ".join(TEXT.split()[START:]))
    step, layer = next((step, layer) for step, layer in trace.steps.rows if getattr(step.operation, "has_state", False))
    site = Site(trace, step, layer)
    lost = words_of(site)[f"the state of the tokens before {START} is lost"]
    inputs = [trace.step(name, where)[..., START:, :] for name, where in site.sources]
    alone = step.operation.compute(site.module, tuple(inputs))[0]  # type: ignore[union-attr]
    assert later.step(step.name, layer).shape == alone.shape
    assert torch.allclose(lost(site)[..., START:, :], alone, atol=1e-6)
