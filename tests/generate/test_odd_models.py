"""Models that somebody hooked, changed or made in another mode, and settings that go together badly."""

import copy
import math
import warnings

import pytest
import torch
from architectures import config_of, lively
from streaming import PROMPT, WARM, assert_same, steps_of, untied

from tinytf.errors import GenerationError, MemoryShortage, UsageError
from tinytf.generate.decoder import Decoder, Kind
from tinytf.generate.loop import Looking
from tinytf.model import cache as cache_module
from tinytf.model.layout import lay_out


def test_chunks_without_a_cache_are_refused() -> None:
    with pytest.raises(UsageError, match="only with a cache"):
        steps_of(untied("llama, grouped"), chunk=3, use_cache=False)


@pytest.mark.parametrize("ends", [False, True])
def test_every_sample_says_what_it_looked_at(ends: bool) -> None:
    model = untied("llama, grouped")
    over = {steps_of(model, seed=4, sampling=WARM)[3].id} if ends else set()
    together = steps_of(model, samples=3, seed=4, sampling=WARM, looking=Looking(), ends=over)
    for number in range(1, 4):
        alone = steps_of(model, seed=3 + number, sampling=WARM, looking=Looking(), ends=over)
        for ours, theirs in zip([step for step in together if step.sample == number], alone, strict=True):
            assert torch.allclose(ours.attention, theirs.attention, atol=1e-5)


@pytest.mark.parametrize("settings", [{"looking": Looking()}, {"kind": Kind(quantize=True)}], ids=str)
def test_a_hooked_model_is_not_looked_at_and_not_quantised_in_silence(settings: dict) -> None:
    model = untied("gpt2")
    model.final_norm.register_forward_hook(lambda *_: None)
    with pytest.raises(UsageError, match="a model without hooks"):
        steps_of(model, **settings)


@pytest.mark.parametrize("value", [math.inf, 1e38], ids=str)
@torch.no_grad()
def test_no_warning_while_the_first_token_is_looked_at(value: float) -> None:
    model = untied("gpt2")
    model.blocks[0].attention.q.weight[0].fill_(value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GenerationError):
            steps_of(model, looking=Looking())


def test_samples_that_do_not_fit_are_a_memory_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    model = untied("gpt2")
    monkeypatch.setattr(cache_module, "UNASKED", 0)
    monkeypatch.setattr(cache_module, "free_bytes", lambda device: 20_000)
    assert len(steps_of(model)) == 10
    with pytest.raises(MemoryShortage, match="for 100 texts"):
        steps_of(model, samples=100)


def test_a_deep_copy_is_laid_out_by_itself() -> None:
    model = untied("gpt2")
    lay_out(model)
    copied = copy.deepcopy(model)
    assert_same(steps_of(copied), steps_of(model))
    assert {p.data_ptr() for p in copied.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())


def test_a_stream_in_inference_mode_leaves_a_model_that_can_be_trained() -> None:
    model = untied("gpt2")
    with torch.inference_mode():
        steps_of(model)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    model(torch.tensor([PROMPT])).sum().backward()
    assert model.blocks[0].attention.q.weight.grad is not None


def test_a_model_made_in_inference_mode_streams_with_a_cache() -> None:
    with torch.inference_mode():
        model = untied("gpt2")
    assert_same(steps_of(model), steps_of(model, use_cache=False))


class Halved(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_module_that_was_exchanged_is_still_asked(wrapped: bool) -> None:
    model = untied("gpt2")
    plain = [step.log_probability for step in steps_of(model)]
    old = model.blocks[0].ffn.down
    new = Halved(old.in_features, old.out_features)
    new.load_state_dict(old.state_dict())
    model.blocks[0].ffn.down = torch.nn.Sequential(new) if wrapped else new
    assert not Decoder.fits(model)
    changed = steps_of(model)
    assert_same(changed, steps_of(model, use_cache=False))
    assert [step.log_probability for step in changed] != plain


def test_a_global_hook_sees_every_module() -> None:
    model, seen = untied("gpt2"), []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        assert not Decoder.fits(model)
    finally:
        handle.remove()
    assert Decoder.fits(model)


def test_a_cache_that_is_too_small_is_refused_at_once_and_one_of_several_texts_is_used_again() -> None:
    model = lively(config_of("gpt2"))
    with pytest.raises(UsageError, match="room for 8 tokens, but up to 13 will come"):
        steps_of(model, cache=model.cache(8))
    cache = model.cache()
    steps_of(model, samples=3, sampling=WARM, cache=cache)
    cache.clear()
    assert_same(steps_of(model, cache=cache), steps_of(model))
