"""The decoder's own arithmetic gives what the modules give, in every kind, dtype and number of texts."""

import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from architectures import KINDS, config_of, furthest, lively, some_ids
from covering import along
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.decoder import PLAIN, Decoder, Kind
from tinytf.generate.loop import stream
from tinytf.model.transformer import Transformer
from tinytf.steps.one_token import Kernels, NumpyKernels
from tinytf.trace.hooks import tap_steps

GROUPED = ["gpt2", "llama, grouped", "one key head for all", "mistral, a window and stretched waves"]
PROMPT = [3, 17, 5, 9]


def decoded(kind: str) -> Transformer:
    """A model of that kind, if these kernels decode it."""
    model = lively(config_of(kind))
    if not Decoder.fits(model) or model.config.rope_switch:
        pytest.skip("its modules decode it")
    return model


def tokens_of(model: Transformer, **settings: object) -> list[int]:
    return [step.id for step in stream(model, PROMPT, **{"max_tokens": 12, **settings})]


def token_by_token(model: Transformer, ids: Tensor, prefilled: int = 0, kind: Kind = PLAIN) -> Tensor:
    """The decoder's logits (B, T − prefilled, V); the first ``prefilled`` tokens go through the modules."""
    cache = model.cache(ids.shape[1], batch=len(ids))
    if prefilled:
        with torch.inference_mode():
            model.hidden(ids[:, :prefilled], cache=cache)
    decoder = Decoder(model, cache, len(ids), kind)
    found = [decoder(column) for column in ids[:, prefilled:].unbind(1)]
    assert cache.position == ids.shape[1]
    return torch.stack(found, dim=1)


@torch.no_grad()
@along({"kind": KINDS, "texts": [1, 2, 3]})
def test_logits_token_by_token_are_those_of_one_whole_pass(kind: str, texts: int) -> None:
    model = decoded(kind)
    ids = some_ids(model.config, texts, 13)
    expected = model(ids)  # before the weights are moved
    assert furthest(token_by_token(model, ids), expected) < 1e-5


@pytest.mark.exhaustive
@torch.no_grad()
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_compiled_it_sees_as_much_of_the_past_as_a_window_lets_it(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("compiling takes a C++ compiler")
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend=backend))  # the graph alone is quick
    model = lively(config_of("mistral, a window and stretched waves", n_layers=1))
    ids = some_ids(model.config, 1, 13)
    expected = model(ids)
    assert furthest(token_by_token(model, ids, prefilled=2, kind=Kind(compile=True)), expected[:, 2:]) < 1e-5


@torch.no_grad()
@along({"kind": KINDS, "texts": [1, 2]})
def test_it_goes_on_from_what_the_modules_put_into_the_cache(kind: str, texts: int) -> None:
    model = decoded(kind)
    ids = some_ids(model.config, texts, 13)
    assert furthest(token_by_token(model, ids, prefilled=6), model(ids)[:, 6:]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("dtype", "texts", "kernels", "near"),
    [
        (torch.float32, 1, NumpyKernels, 1e-5),
        (torch.float32, 2, Kernels, 1e-5),
        (torch.float64, 1, Kernels, 1e-12),
        (torch.bfloat16, 1, Kernels, 0.1),
        (torch.bfloat16, 3, Kernels, 0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["gpt2", "qwen3, normed queries and wide heads", "narrow heads, after the sum"])
def test_kernels_are_chosen_by_dtype_and_texts_and_stay_near_the_modules(
    kind: str, dtype: torch.dtype, texts: int, kernels: type, near: float
) -> None:
    model = lively(config_of(kind)).to(dtype)
    decoder = Decoder(model, model.cache(5, batch=texts), texts)
    assert type(decoder.kernels) is kernels
    assert decoder.threads_of_torch == (kernels is Kernels)
    ids = some_ids(model.config, texts, 9)
    expected, found = model(ids), token_by_token(model, ids)
    assert found.dtype is dtype
    assert furthest(found, expected) < near


@torch.no_grad()
def test_torchs_kernels_are_kept_where_few_texts_of_many_remain() -> None:
    model = lively(config_of("llama, grouped"))
    decoder = Decoder(model, model.cache(), texts=4)
    assert isinstance(decoder.kernels, Kernels)
    ids = some_ids(model.config, 1, 5)
    found = torch.stack([decoder(column) for column in ids.unbind(1)], dim=1)
    assert furthest(found, model(ids)) < 1e-5


def tapped_weights(model: Transformer, ids: Tensor) -> list[Tensor]:
    """Every layer's attention weights (B, H, K) of the last query, as the stepped core makes them."""
    kept = []

    def tap(name: str, tensor: Tensor) -> Tensor:
        kept.append(tensor[:, :, -1])
        return tensor

    with tap_steps(model, tap, ["weights"]):
        model(ids)
    return kept


@torch.no_grad()
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("kind", GROUPED)
def test_what_is_looked_at_is_what_the_stepped_core_computes(kind: str, texts: int) -> None:
    model = lively(config_of(kind))
    ids = some_ids(model.config, texts, 9)
    decoder = Decoder(model, model.cache(batch=texts), texts)
    for length in range(1, ids.shape[1] + 1):
        seen: dict[int, Tensor] = {}
        decoder(ids[:, length - 1], seen.__setitem__)
        expected = tapped_weights(model, ids[:, :length])
        assert list(seen) == [0, 1]
        for layer, weights in seen.items():
            assert furthest(weights, expected[layer]) < 1e-5
            assert torch.allclose(weights.sum(-1), torch.ones(texts, model.config.n_heads), atol=1e-6)
        if model.config.window:
            assert not seen[0][..., : max(0, length - model.config.window)].any()


@torch.no_grad()
def test_looking_changes_no_logit() -> None:
    model = lively(config_of("mistral, a window and stretched waves"))
    ids = some_ids(model.config, 1, 9)
    looking, plain = Decoder(model, model.cache()), Decoder(model, model.cache())
    for column in ids.unbind(1):
        assert torch.equal(looking(column, lambda layer, weights: None), plain(column))


HOOKS = ["register_forward_hook", "register_forward_pre_hook"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("place", ["blocks.0.attention.k", "blocks.1.ffn.act", "embed.tokens", "blocks.1.norm2"])
@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped"])
def test_a_hook_sees_every_token_and_the_tokens_stay_the_same(kind: str, place: str, hook: str) -> None:
    model, lengths = lively(config_of(kind, tied_head=False)), []
    expected = tokens_of(model)
    register = getattr(model.get_submodule(place), hook)
    handle = register(lambda module, args, *result: lengths.append(args[0].shape[1]))
    assert not Decoder.fits(model)
    with pytest.raises(UsageError, match="the model has hooks"):
        Decoder(model, model.cache())
    assert tokens_of(model) == expected
    assert lengths == [len(PROMPT), *[1] * 11]  # the last token is not fed
    handle.remove()
    assert Decoder.fits(model)
    assert tokens_of(model) == expected
    assert len(lengths) == 12


@pytest.mark.parametrize("kind", ["gpt2", "mistral, a window and stretched waves"])
def test_a_tapped_step_is_asked_at_every_token_and_may_change_the_text(kind: str) -> None:
    model, lengths = lively(config_of(kind, tied_head=False)), []
    expected = tokens_of(model)

    def tap(step: str, tensor: Tensor) -> Tensor:
        lengths.append(tensor.shape[2])
        return tensor

    with tap_steps(model, tap, ["head_out"]):
        assert not Decoder.fits(model)
        assert tokens_of(model) == expected
    assert lengths == [len(PROMPT)] * 2 + [1] * 22  # two layers
    with tap_steps(model, lambda step, tensor: torch.zeros_like(tensor), ["head_out"]):
        assert tokens_of(model) != expected
    assert Decoder.fits(model)
    assert tokens_of(model) == expected


def test_an_encoder_and_a_model_without_a_head_are_no_decoders() -> None:
    for kind in ("bert with a masked head", "the paper's encoder", "rotary and both ways"):
        assert not Decoder.fits(lively(config_of(kind)))
    assert not Decoder.fits(lively(config_of("gpt2", head="none")))


@pytest.mark.parametrize("texts", [1, 2])
def test_a_full_cache_is_refused_with_the_numbers_and_keeps_what_is_in(texts: int) -> None:
    model = lively(config_of("gpt2"))
    cache = model.cache(3, batch=texts)
    decoder = Decoder(model, cache, texts)
    ids = some_ids(model.config, texts, 4)
    for column in ids[:, :3].unbind(1):
        decoder(column)
    before = cache.layers[1].keys.clone()
    with pytest.raises(UsageError, match="room for 3 tokens: it holds 3, 1 more came"):
        decoder(ids[:, 3])
    with pytest.raises(UsageError, match=f"{texts + 1} texts cannot continue in a cache for {texts}"):
        decoder(torch.zeros(texts + 1, dtype=torch.int64))
    assert cache.position == 3
    assert torch.equal(cache.layers[1].keys, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "place",
    ["blocks.0.attention.v.weight", "blocks.1.ffn.down.weight", "blocks.0.norm1.weight", "final_norm.bias",
     "blocks.1.attention.q.bias", "embed.tokens.weight", "embed.positions.weight"],
)  # fmt: skip
def test_a_weight_that_was_changed_in_place_is_seen_by_the_next_stream(place: str, dtype: torch.dtype) -> None:
    def changed(model: Transformer) -> Transformer:
        with torch.no_grad():
            values = model.get_parameter(place)
            values.copy_(torch.randn(values.shape, generator=torch.Generator().manual_seed(9)))
        return model

    def figures(model: Transformer) -> list[float]:
        return [step.log_probability for step in stream(model, PROMPT, max_tokens=8)]

    model = lively(config_of("gpt2")).to(dtype)
    before = figures(model)
    after = figures(changed(model))
    assert after == pytest.approx(figures(changed(lively(config_of("gpt2")).to(dtype))), abs=1e-5)
    assert after[2:] != pytest.approx(before[2:], abs=1e-3)  # those that the decoder made


@contextmanager
def threads(count: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@pytest.mark.share(4)
@pytest.mark.parametrize("settings", [{}, {"samples": 2}, {"use_cache": False}, {"on_overflow": "slide"}], ids=str)
def test_torch_has_as_many_threads_between_the_steps_and_after_as_before(settings: dict[str, object]) -> None:
    model = lively(config_of("gpt2"))
    with threads(2):
        for _ in stream(model, PROMPT, max_tokens=32, **settings):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2


def test_torchs_threads_are_given_back_where_a_stream_is_left_or_fails() -> None:
    model = lively(config_of("gpt2"))
    with threads(2):
        left = stream(model, PROMPT, max_tokens=20)
        next(left)
        next(left)
        left.close()
        assert torch.get_num_threads() == 2
        with torch.no_grad():
            model.embed.positions.weight[6] = math.nan
        with pytest.raises(GenerationError):
            list(stream(model, PROMPT, max_tokens=20))
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38], ids=str)
@pytest.mark.parametrize("place", ["blocks.0.ffn.down.weight", "blocks.1.attention.q.bias", "blocks.0.norm2.weight"])
def test_numbers_that_overflow_or_are_none_give_an_error_and_no_warning_of_numpys(place: str, value: float) -> None:
    model = lively(config_of("gpt2"))
    steps = stream(model, PROMPT, max_tokens=20)
    next(steps)
    next(steps)  # from here on the decoder, whose arrays share their memory with the weights
    with torch.no_grad():
        model.get_parameter(place).fill_(value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GenerationError, match="logits of new token 3 are not finite"):
            list(steps)
