"""What ``info`` says of an architecture is its configuration: every part of every kind of model, and nothing else."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from architectures import HEADS_OF_CLASSES, KINDS, config_of
from driving import Tinytf

from tinytf.config import CHOICES, FIELDS, ModelConfig
from tinytf.errors import ConfigError

_USUAL = {name: field.default for name, field in FIELDS.items()}
EVERY = (*KINDS, *HEADS_OF_CLASSES)


def others(name: str, value: Any) -> Iterator[Any]:
    """Other values of a field, the usual one first."""
    yield _USUAL[name]
    yield from CHOICES.get(name, ())
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value * 2, value + 1, value + 4, value / 2)
    elif isinstance(value, tuple):
        yield tuple(reversed(value))


def changed(config: ModelConfig, name: str, value: Any) -> ModelConfig | None:
    """The configuration with another value of a field; None where it cannot be built so."""
    for other in others(name, value):
        if other != value and type(other) is type(value):
            with suppress(ConfigError):
                if (made := config.but(**{name: other})) != config:
                    return made
    return None


@pytest.mark.share(4)
@pytest.mark.every  # no model is made
@pytest.mark.parametrize("kind", EVERY)
def test_every_setting_of_a_kind_changes_the_words(kind: str) -> None:
    given, config = (KINDS | HEADS_OF_CLASSES)[kind], config_of(kind)
    unsaid = {"tied_head"} if config.head.kind == "none" else set()  # kept for the export alone
    for name in given.keys() - dict(config.by_layer) - {"encoder"} - unsaid:
        other = changed(config, name, config.setting(name))
        assert other is None or ModelConfig.described(other) != ModelConfig.described(config), name


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(("gpt2", name, 48) for name in ("vocab_size", "d_model", "n_layers", "d_ff", "context")),
        ("gpt2", "mask", False),
        ("gpt2", "layer_groups", 1),
        ("gpt2", "input_norm", False),
        ("bloom, less by distance", "alibi_rounded", True),
        ("bloom, less by distance", "alibi_max_bias", 4.0),
        ("olmo 3, windows turned as they are and the others by yarn", "rope_truncate", False),
        ("bert with classes of the text", "head_norm", True),
    ],
)
def test_a_setting_that_no_kind_has_changes_the_words(kind: str, name: str, value: Any) -> None:
    assert ModelConfig.described(config_of(kind, **{name: value})) != ModelConfig.described(config_of(kind))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "by_layer" in KINDS[kind]])
def test_what_differs_by_layer_is_said_of_some_of_the_layers(kind: str) -> None:
    config = config_of(kind, n_layers=3)
    assert any(re.search("in [12] of the layers", words) for words in ModelConfig.described(config).values())
    for name, values in config.by_layer:
        mixers = "mixer" in dict(config.by_layer)  # what else differs then is of the other mixer, and goes with it
        with suppress(ConfigError):  # settings that differ together
            same = config.but(by_layer=tuple(pair for pair in config.by_layer if not mixers and pair[0] != name))
            assert ModelConfig.described(same) != ModelConfig.described(config), (name, values)


@pytest.mark.parametrize("kind", EVERY)
def test_the_words_have_the_parts_that_the_model_has(kind: str) -> None:
    config, words = config_of(kind), ModelConfig.described(config_of(kind))
    layers = [config.at(layer) for layer in range(config.n_layers)]
    for part, word, there in (
        ("feed-forward", f"{config.experts} experts of {config.d_expert} units, {config.experts_per_token} for each",
         config.experts > 0),
        ("feed-forward", f"a shared expert of {config.d_shared} units", config.d_shared > 0),
        ("feed-forward", "gated", config.gated),
        ("positions", "rotary (RoPE)", any(one.positions == "rotary" for one in layers)),
        ("positions", "ALiBi", config.positions == "alibi"),
        ("widths", f"keys and values of {config.kv_rank} numbers", config.kv_rank > 0),
        ("scores", "a learned sink", any(one.attention_sinks for one in layers)),
        ("scores", "softly capped", config.attention_cap > 0),
        ("window", f"{4 if config.causal else 3} tokens", any(one.window == 4 for one in layers)),
        ("chunks", "of 4 tokens", any(one.chunk for one in layers)),
        ("norm", "RMSNorm", config.norm == "rmsnorm"),
        ("norm", "on q and k too", any(one.qk_norm for one in layers)),
        ("residual", "side by side", config.residual == "parallel"),
        ("head", "tied", config.tied_head and config.head.kind != "none"),
    ):  # fmt: skip
        assert (word in words.get(part, "")) == there, (part, word)


def test_info_of_a_mixture_tells_its_experts_and_their_work(tinytf: Tinytf) -> None:
    said = " ".join(tinytf("info", "preset:mixtral-tiny", "--width", "200").out.split())
    assert "feed-forward silu, gated, 8 experts of" in said
    assert "units, 2 for each token" in said
    assert "2 · 3 · d_model · (2·d_expert) + the router, in layers with experts" in said
