"""With a cache or without, the numbers are the same, in every kind of decoder and however the text arrives."""

import pytest
import torch
from architectures import KINDS, SOURCE, config_of, facing, furthest, lively, padding, some_ids
from covering import along
from reference import FAMILIES, is_encoder
from streaming import decoder
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.cache import KVCache
from tinytf.model.transformer import Transformer
from tinytf.parts.gated_delta import GatedDelta
from tinytf.parts.kimi_delta import KimiDelta
from tinytf.parts.lightning import Lightning
from tinytf.parts.mamba2 import Mamba2
from tinytf.steps.work import cache_bytes_per_token

LONGROPE, DYNAMIC = "phi 3, long texts turned by other factors", "llama, a base that grows with a longer text"
DECODERS = [kind for kind, fields in KINDS.items() if fields.get("causal", True) and kind not in (LONGROPE, DYNAMIC)]
DECODER_FAMILIES = [name for name in FAMILIES if not is_encoder(name) and name not in (LONGROPE, DYNAMIC)]


def in_pieces(model: Transformer, ids: Tensor, lengths: list[int], real: Tensor | None = None) -> Tensor:
    """The logits of a text that comes piece by piece, put together."""
    cache, found = model.cache(ids.shape[1], batch=len(ids)), []
    for piece in ids.split(lengths, dim=1):
        mask = None if real is None else real[:, : cache.position + piece.shape[1]]
        found.append(model.unembed(model.hidden(piece, padding_mask=mask, cache=cache)))
    assert cache.position == ids.shape[1]
    return torch.cat(found, dim=1)


@torch.no_grad()
@along(
    {
        "kind": DECODERS,
        "lengths": [[11], [1] * 11, [5, 1, 1, 1, 1, 1, 1], [4, 3, 1, 3]],
        "core": ["fused", "steps"],
    },
    ids=str,
)
def test_cached_logits_are_the_uncached_ones(kind: str, lengths: list[int], core: str) -> None:
    model = lively(config_of(kind))
    ids = some_ids(model.config)
    expected = model(ids)
    model.fuse(core == "fused")
    if core == "steps" and any(
        isinstance(block.mixer, GatedDelta | KimiDelta | Mamba2 | Lightning) for block in model.config.blocks
    ):
        with pytest.raises(UsageError, match="is only computed for whole texts"):
            in_pieces(model, ids, lengths)
        return
    assert furthest(in_pieces(model, ids, lengths), expected) < 1e-5


@torch.no_grad()
def test_keys_that_longrope_turned_as_those_of_a_short_text_are_refused_in_a_long_one() -> None:
    model = lively(config_of(LONGROPE))
    ids, short = some_ids(model.config), model.config.rope_switch
    assert furthest(in_pieces(model, ids[:, :short], [4, 2]), model(ids[:, :short])) < 1e-5
    assert furthest(in_pieces(model, ids, [short + 1, 1, 3]), model(ids)) < 1e-5
    with pytest.raises(UsageError, match="a text of 7 tokens is turned by other angles than the cached keys"):
        in_pieces(model, ids, [5, 1, 1, 4])


@torch.no_grad()
@pytest.mark.parametrize("family", DECODER_FAMILIES)
def test_cached_logits_are_those_of_transformers(family: str) -> None:
    models = decoder(family)
    ids = some_ids(models.ours.config, batch=2, length=17)
    expected = models.theirs(ids).logits
    # a delta rule subtracts what it reads: either is 4e-4 off what float64 gives of the first Qwen3.5-MoE
    subtracts = any(isinstance(block.mixer, GatedDelta | KimiDelta) for block in models.ours.config.blocks)
    assert furthest(in_pieces(models.ours, ids, [6, *[1] * 11]), expected) < (1e-3 if subtracts else 2e-5)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["gpt2", "mistral, a window and stretched waves"])
def test_a_padding_mask_covers_what_is_in_the_cache_too(kind: str, side: str) -> None:
    model = lively(config_of(kind))
    ids = some_ids(model.config)
    real = padding(side, *ids.shape)
    assert real is not None
    found = in_pieces(model, ids, [6, 1, 1, 3], real)
    assert furthest(found[real], model(ids, padding_mask=real)[real]) < 1e-5


@torch.no_grad()
def test_grouped_heads_are_held_once_a_group_and_the_bytes_are_what_info_says() -> None:
    model = lively(config_of("llama, grouped"))
    cache = model.cache(20)
    model.hidden(some_ids(model.config, batch=1, length=7), cache=cache)
    use = cache.use()
    assert [one.shape for one in use] == [(1, 2, 20, 6)] * 2
    assert [one.used for one in use] == [7, 7]
    assert sum(one.bytes_per_token for one in use) == cache_bytes_per_token(model.config, 4)
    assert sum(one.allocated_bytes for one in use) == 20 * cache_bytes_per_token(model.config, 4)
    assert sum(one.used_bytes for one in use) == 7 * cache_bytes_per_token(model.config, 4)


@torch.no_grad()
@pytest.mark.parametrize("kind", [kind for kind in KINDS if config_of(kind).d_source])
def test_keys_and_values_of_a_source_are_in_the_bytes(kind: str) -> None:
    model = facing(lively(config_of(kind)))
    cache = model.cache(20)
    model.hidden(some_ids(model.config, batch=1, length=7), cache=cache)
    of_source = sum(
        2 * len(SOURCE) * layer.n_kv_heads * layer.d_head * 4
        for layer in map(model.config.at, range(model.config.n_layers))
    )
    assert len(SOURCE) * cache_bytes_per_token(model.config, 4, of_source=True) == of_source
    assert sum(one.used_bytes for one in cache.use()) == 7 * cache_bytes_per_token(model.config, 4) + of_source
    assert sum(one.allocated_bytes for one in cache.use()) == 20 * cache_bytes_per_token(model.config, 4) + of_source


@torch.no_grad()
def test_more_than_there_is_room_for_is_refused_with_the_numbers_and_changes_nothing() -> None:
    model = lively(config_of("gpt2"))
    cache = model.cache(8)
    model.hidden(some_ids(model.config, batch=1, length=6), cache=cache)
    with pytest.raises(UsageError, match="room for 8 tokens: it holds 6, 3 more came"):
        model.hidden(some_ids(model.config, batch=1, length=3), cache=cache)
    assert cache.position == 6
    with pytest.raises(UsageError, match="2 texts cannot continue in a cache for 1"):
        model.hidden(some_ids(model.config, batch=2, length=1), cache=cache)
    for capacity in (0, 33):
        with pytest.raises(UsageError, match="not between 1 and the model's context of 32"):
            model.cache(capacity)


def test_an_encoder_has_no_cache() -> None:
    with pytest.raises(UsageError, match="encoder without a head, and predicts no token"):
        KVCache(config_of("the paper's encoder"))
    with pytest.raises(UsageError, match="predicts masked tokens") as caught:
        KVCache(config_of("bert with a masked head"))
    assert "[MASK]" in caught.value.hint
