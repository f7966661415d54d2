"""One text in several ways: models that are the same in all, and faults that change one of them."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from architectures import KINDS, asked, config_of, lively
from reference import saved
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from tinytf.errors import UsageError
from tinytf.model.transformer import Source, Transformer
from tinytf.through.model import ThroughModel, open_through
from tinytf.through.same import Same, same

TEXT = "3 14 15 9 2 6 5"


@pytest.mark.parametrize("kind", KINDS)
def test_our_models_are_the_same_in_every_way(kind: str) -> None:
    found = same(asked(lively(config_of(kind))), TEXT)
    assert found.holds, found.sentence
    assert found.steps > 5
    refused = {way.way: way.why for way in found.ways if way.holds is None}
    angles = any("is turned by other angles than the cached keys" in why for why in refused.values())
    facing = lively(config_of(kind)).reads is not None
    assert len(found.ways) == 12 + 2 * facing
    assert angles == (kind == "phi 3, long texts turned by other factors")
    tried = {way.way for way in found.ways if way.holds}
    if kind != "llama, a base that grows with a longer text":  # any longer row is another
        assert {"padded on the right", "alone again, after another text", "with a mask of booleans"} <= tried
        assert ("with later tokens after it" in tried) == lively(config_of(kind)).config.causal
    assert all(refused.values())


def test_a_padded_source_that_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = asked(lively(config_of("t5, two stacks")))
    read = Transformer.read
    monkeypatch.setattr(Transformer, "read", lambda self, ids, mask=None: Source(read(self, ids).states))
    found = {way.way: way for way in same(model, TEXT).ways}
    assert found["with its source padded on the right"].holds is False
    assert found["with its source padded on the right"].why == "the padding of the source is read"
    assert found["padded on the right"].holds


def through(family: str) -> ThroughModel:
    return open_through(str(saved(family)))


def asked_of(family: str, change: Callable[[Any], object] = lambda model: None) -> Same:
    model = through(family)
    change(model.transformer)
    return same(model, TEXT)


def differing(found: Same) -> dict[str, str]:
    return {way.way: way.why for way in found.differing}


@pytest.mark.parametrize("family", ["llama", "bert with a masked head", "gemma 3", "qwen3.5", "lfm2"])
def test_models_through_transformers_are_the_same(family: str) -> None:
    """RoPE's tables and what it turns are other numbers at other places, which change nothing."""
    found = asked_of(family)
    assert found.holds, found.sentence
    assert all(way.holds or (way.holds is None and way.why) for way in found.ways)


def test_what_is_found_in_transformers_itself() -> None:
    """GPT-2 wants positions of its own for padding on the left, RecurrentGemma writes padding into its state."""
    positions = "positions count the padding: with position_ids of its own it is the same"
    read = "the padding is read: other tokens in it change the numbers"
    left = ("padded on the left", "in a batch, padded on the left")
    assert differing(asked_of("gpt2")) == dict.fromkeys(left, positions)
    assert differing(asked_of("recurrent gemma")) == dict.fromkeys((*left, "with a mask of integers"), read)


def without_mask(model: Any) -> None:
    plain = model.forward
    model.forward = lambda input_ids=None, attention_mask=None, position_ids=None, **given: plain(
        input_ids=input_ids, position_ids=position_ids, **given
    )


def mixed(model: Any) -> None:
    """The mean of all texts of a batch is added to each."""
    mlp = model.model.layers[1].mlp
    mlp.register_forward_hook(lambda _, __, out: out + out.mean(dim=(0, 1), keepdim=True) * (len(out) > 1))


def remembering(model: Any) -> None:
    """The mean of the text before is added."""
    kept: list[Tensor] = []

    def hook(_: Any, __: Any, out: Tensor) -> Tensor:
        before = kept[-1] if kept else 0.0
        kept.append(out.mean())
        return out + before

    model.model.layers[0].mlp.register_forward_hook(hook)


def looking_ahead(model: Any) -> None:
    """Every token gets the mean over the whole text."""
    model.model.layers[1].mlp.register_forward_hook(lambda _, __, out: out + out.mean(dim=1, keepdim=True))


def test_a_mask_that_is_not_used_is_named() -> None:
    found = asked_of("llama", without_mask)
    assert differing(found) == dict.fromkeys(
        ("padded on the left", "in a batch, padded on the left"),
        "forward takes attention_mask, and its result does not depend on it",
    )
    assert found.differing[0].step == "model.layers.0.self_attn.o_proj"
    assert found.sentence.startswith(
        "Not the same padded on the left, from model.layers.0.self_attn.o_proj on, at token 0 3: forward takes "
    )


def test_texts_that_are_mixed_in_a_batch_are_named() -> None:
    found = asked_of("llama", mixed)
    words = "the texts of a batch are mixed: another text beside it changes the numbers"
    sides = [f"in a batch, padded on the {side}" for side in ("right", "left")]
    assert differing(found) == dict.fromkeys(sides, words)
    assert {way.step for way in found.differing} == {"model.layers.1.mlp"}


def test_what_is_kept_of_the_text_before_is_named() -> None:
    found = asked_of("llama", remembering)
    assert differing(found)["alone again, after another text"] == "the model keeps something of the text before"


def test_a_token_that_sees_later_ones_is_named() -> None:
    model = through("llama")
    assert model.config.causal  # asked before the change
    looking_ahead(model.transformer)
    assert differing(same(model, TEXT))["with later tokens after it"] == "a token sees later ones"


def test_a_cache_that_is_not_right_is_named() -> None:
    plain = DynamicLayer.update

    def forgetful(layer: Any, keys: Tensor, values: Tensor, *more: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        plain(layer, keys, values, *more, **settings)
        return keys, values

    def stale(layer: Any, keys: Tensor, values: Tensor, *more: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        keys, values = plain(layer, keys, values, *more, **settings)
        return keys, torch.cat((values[..., :1, :], values[..., :-1, :]), dim=-2)

    model = through("llama")
    with mock.patch.object(DynamicLayer, "update", stale):
        found = same(model, TEXT)
    assert set(differing(found)) == {"with a cache, token by token", "with a cache, in chunks of 3"}
    assert {(way.step, way.position) for way in found.differing} == {("model.layers.0.self_attn.o_proj", 1)}
    with mock.patch.object(DynamicLayer, "update", forgetful):
        failing = [way for way in same(model, TEXT).ways if way.failed]
    assert [way.way for way in failing] == ["with a cache, token by token", "with a cache, in chunks of 3"]
    assert all(way.why.startswith("it fails: ") for way in failing)
    assert not any(way.holds for way in failing)


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(UsageError, match="a text of one token"):
        same(asked(lively(config_of("gpt2"))), "3")


def test_a_text_that_fills_the_context_is_tried_where_it_can_be() -> None:
    model = asked(lively(config_of("gpt2")))
    text = " ".join(["3", "4"] * (model.config.context // 2))
    found = same(model, text)
    assert found.holds
    why = {way.way: way.why for way in found.ways if way.holds is None}
    assert why["padded on the right"] == why["with later tokens after it"] == "the text fills the context"
    assert "with a cache, token by token" not in why
