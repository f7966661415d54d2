"""A configuration that cannot be built is refused with its numbers; one that can has the parameters it says."""

import dataclasses
import itertools
import math

import pytest
import torch
from architectures import BERT, KINDS, LLAMA, SIZES, config_of

from tinytf.config import ModelConfig
from tinytf.errors import ConfigError, MemoryShortage, UsageError
from tinytf.look.info import parameter_count
from tinytf.model.transformer import Transformer
from tinytf.presets import PRESETS, preset

INDEX = {"index_keys": 4, "index_heads": 2, "index_width": 6}
STREAMS = {"extra_streams": 2, "stream_rank": 3}
REFUSED = [
    ({"d_model": 130}, "d_model 130 is not divisible by n_heads 4"),
    ({"n_heads": 6, "n_kv_heads": 4}, "n_heads 6 is not divisible by n_kv_heads 4"),
    ({"n_kv_heads": 8}, "n_heads 4 is not divisible by n_kv_heads 8"),
    ({"n_kv_heads": -2}, "n_kv_heads -2 is below 0"),
    ({"positions": "rotary", "d_head": 5}, "d_head 5 is odd, but RoPE rotates pairs of dimensions"),
    (
        {"positions": "sinusoidal", "d_model": 21, "d_head": 4},
        "d_model 21 is odd, but sinusoidal positions fill pairs of dimensions",
    ),
    ({"head": "mlm"}, "head 'mlm' fills masks from both sides, but causal is true"),
    ({"pooler": True}, "a pooler reads the first token, which in a causal model sees only itself"),
    ({"head": "none", "head_bias": True}, "head_bias is true, but head is 'none'"),
    ({"norm": "layrnorm"}, "norm 'layrnorm' is not one of layernorm, rmsnorm"),
    (
        {"positions": "relative"},
        (
            "positions 'relative' is not one of "
            "learned, sinusoidal, sinusoidal_halves, sinusoidal_concat, rotary, alibi, none"
        ),
    ),
    ({"qkv_groups": 5}, "queries, keys or values of 24 numbers are not divisible by qkv_groups 5"),
    (
        {"qkv_groups": 12, "n_heads": 6, "d_head": 2, "d_value": 3},
        "queries, keys or values of 18 numbers are not divisible by qkv_groups 12",
    ),
    ({"qkv_groups": 4, "n_heads": 2, "d_model": 22, "d_head": 2}, "d_model 22 is not divisible by qkv_groups 4"),
    (
        {"qkv_groups": 2, "attention_gate": True},
        "qkv_groups 2 needs attention without latent keys, gates and distances",
    ),
    ({"side_conv": True, "norm_order": "post", "causal": False}, "side_conv needs an odd side_width, not 0"),
    ({"side_width": 3, "norm_order": "post"}, "a side_width of 3 tokens reads ahead, but causal is true"),
    ({"side_width": 3, "causal": False}, "a side_width needs norm_order 'post', not 'pre'"),
    ({"ffn_groups": 3}, "d_ff 40 is not divisible by ffn_groups 3"),
    ({"ffn_groups": 5}, "d_model 24 is not divisible by ffn_groups 5"),
    ({"ffn_groups": 2, "experts": 2, "experts_per_token": 1}, "ffn_groups 2 needs a feed-forward without experts"),
    ({"n_layers": 0}, "n_layers 0 is below 1"),
    ({"n_layers": 2**31}, "n_layers 2,147,483,648 is above 1,024"),
    ({"d_ff": 2.5}, "d_ff is 2.5, and has to be a whole number"),
    ({"context": True}, "context is True, and has to be a whole number"),
    ({"dropout": 1.0}, "dropout 1.0 is outside [0, 1)"),
    ({"norm_eps": 0.0}, "norm_eps 0.0 is not above 0"),
    ({"rope_theta": -1.0}, "rope_theta -1.0 is not above 0"),
    ({"embed_scale": 0.0}, "embed_scale 0.0 is not above 0"),
    ({"n_token_types": -1}, "n_token_types -1 is below 0"),
    ({"window": -1}, "window -1 is below 0"),
    ({"window": 4, "mask": False}, "a window of 4 tokens needs a mask, but mask is false"),
    (
        {"lambda_init": 0.2, "n_kv_heads": 1},
        "lambda_init needs an even number of each, not 4 heads and 1 key-value heads",
    ),
    ({"lambda_init": 0.2, "attention_gate": True}, "attention_gate, head_experts and lambda_init exclude one another"),
    ({"head_experts": True}, "head_experts needs a head for each expert and key-value head, not 4 heads"),
    (
        {"sum_bias": True, "experts": 4, "experts_per_token": 2, "d_shared": 8},
        "sum_bias needs experts without a shared one, but d_shared is not 0",
    ),
    ({"relative_buckets": 6}, "relative_buckets 6 is not a multiple of 4"),
    ({"layer_groups": 3}, "layer_groups 3 do not fit 2 layers"),
    (
        {"layer_groups": 1, "by_layer": (("window", (0, 4)),)},
        "layer_groups 1 do not fit 2 layers that differ by layer",
    ),
    (
        {"positions": "sinusoidal_halves", "d_model": 2, "d_head": 2},
        "d_model 2 is below 4, but sinusoidal_halves needs two frequencies",
    ),
    ({"position_offset": 2, "positions": "sinusoidal"}, "position_offset 2 needs learned positions"),
    ({"mixer": "none"}, "mixer is 'none' in all layers, so no token would see another"),
    ({"mixer": "none", "d_ff": 0}, "a layer without a mixer, mixer 'none', needs a feed-forward, and d_ff is 0"),
    (
        {"mixer": "none", "residual": "parallel"},
        "mixer is 'none', but only a sequential pre-norm block can do without a mixer",
    ),
    ({"extra_streams": 2**30}, "extra_streams 1,073,741,824 is above 63"),
    ({"extra_streams": 2}, "extra_streams need hyper, a stream_rank, or norm_order 'both' and a d_layer_input"),
    ({"stream_rank": 2}, "stream_rank gates several streams, of which none is active: see extra_streams"),
    ({**STREAMS, "norm_order": "post"}, "stream_rank needs a sequential pre-norm block, with nothing beside its parts"),
    ({**STREAMS, "d_ff": 0}, "stream_rank needs a mixer and a feed-forward in each layer, and no d_layer_input"),
    ({"ngram_number": 1}, "ngram_number adds to streams that are read through gates, but stream_rank is 0"),
    ({**STREAMS, "ngram_number": 1, "d_ngram": 7}, "n-gram embeddings 7 wide do not divide among 16 tables"),
    (
        {"index_keys": 5, "index_heads": 2, "index_width": 6, "index_block": 2},
        "index_keys 5 are not whole blocks of 2, the index_block",
    ),
    ({**INDEX, "index_pooled": True}, "index_pooled needs an index_block, and no index_by_head"),
    ({**INDEX, "index_tail": False}, "index_tail false needs an index_block, and no index_by_head"),
    (
        {**INDEX, "index_block": 2, "window": 3},
        "an index_block of 2 keys needs attention without windows, chunks and a block_size",
    ),
    (
        {**INDEX, "index_block": 2, "index_pooled": True, "positions": "rotary"},
        "index_pooled sums keys of several positions, which positions 'rotary' turns",
    ),
    (
        {"extra_streams": 2, "norm_order": "both", "d_layer_input": 3, "layer_scale": True},
        "layer_scale multiplies one stream, but there are extra_streams",
    ),
    ({"active_stream": 1}, "active_stream 1 is not one of 1 streams"),
    ({"stream_gain": True}, "stream_gain is true, but there is one stream: extra_streams is 0"),
    (
        {"laurel_rank": 2, "norm_order": "post"},
        "laurel_rank and extra_streams need a sequential block that norms what its parts read",
    ),
    ({"gate_sparsity": 0.9}, "gate_sparsity 0.9 needs a gated feed-forward without a limit or experts"),
    ({"memory": "gives"}, "memory 'gives' needs weights, and memory_sets is 0"),
    (
        {"memory": "gives", "memory_sets": 1},
        "what a layer gives, the layer above must take, and no other: see memory",
    ),
    (
        {"memory": "gives", "memory_sets": 1, "norm_order": "post"},
        "memory 'gives' needs a sequential pre-norm block that adds to the stream alone",
    ),
    (
        {"memory": "gives", "memory_sets": 1, "mixer": "mamba2"},
        "memory 'gives' needs attention and a feed-forward without experts",
    ),
    (
        {"memory": "gives", "memory_sets": 1, "attention_gate": True},
        "memory 'gives' needs attention with keys of its own, and without gates",
    ),
    (
        {"memory": "gives", "memory_sets": 1, "residual_scale": 0.5},
        "residual_scale 0.5 scales what layers add, and memory 'gives' adds nothing",
    ),
    ({"adapted_attention": True}, "adapted_attention needs adapters, and adapter_rank is 0"),
    (
        {"mixer": "mamba", "dt_rank": 2, "scan_heads": 3},
        "n_heads 4 is not divisible by scan_heads 3",
    ),
    (
        {"mixer": "mamba", "dt_rank": 2, "scan_heads": 2, "inner_norm": "learned"},
        "inner_norm 'learned' needs scan_heads 1, not 2",
    ),
    ({"rope_scaling": "linear"}, "rope_scaling 'linear' needs rotary positions"),
    ({"positions": "rotary", "rope_scaling": "llama3"}, "rope_scaling 'llama3' needs rope_original_context"),
    (
        {"positions": "rotary", "rope_scaling": "llama3", "rope_original_context": 8, "rope_low_frequency": 5.0},
        "rope_low_frequency 5.0 is not between 0 and rope_high_frequency 4.0",
    ),
    ({"positions": "rotary", "rope_factor": 0.0}, "rope_factor 0.0 is not above 0"),
    (
        {"positions": "rotary", "rope_scaling": "yarn", "rope_original_context": 8, "rope_theta": 1.0},
        "rope_scaling 'yarn' needs a rope_theta above 1, not 1.0",
    ),
    (
        {"positions": "rotary", "rope_scaling": "longrope", "rope_original_context": 8, "rope_short_factors": (1.0,)},
        "rope_short_factors has 1 numbers for 3 pairs of dimensions",
    ),
    (
        {"by_layer": (("positions", ("learned", "none")),)},
        "positions that differ by layer must be rotary in some and none in the others",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_built_is_refused_with_its_numbers(changes, message):
    with pytest.raises(ConfigError) as caught:
        ModelConfig.of(**{**SIZES, **changes})
    assert caught.value.message == message


def test_a_word_nearly_right_is_answered_with_the_right_one():
    with pytest.raises(ConfigError) as caught:
        ModelConfig.of(**SIZES, activation="gelu_tan")
    assert caught.value.hint == "did you mean gelu_tanh?"


@pytest.mark.parametrize("name", ["norm_eps", "rope_theta", "embed_scale"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_is_refused(name, value):
    with pytest.raises(ConfigError):
        ModelConfig.of(**SIZES, **{name: value})


def test_heads_left_out_follow_from_the_width():
    config = ModelConfig.of(**SIZES)
    assert (config.n_kv_heads, config.d_head, config.heads_per_kv) == (4, 6, 1)


def test_a_configuration_comes_back_from_its_fields():
    for config in [*PRESETS.values(), *map(config_of, KINDS)]:
        assert ModelConfig.from_dict(config.to_dict()) == config


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig.of(**SIZES).n_layers = 3  # type: ignore[misc]


FIELDS_REFUSED = [
    ({"n_head": 4}, "the model configuration has no field 'n_head'", "did you mean n_heads?"),
    ({"d_model": "24"}, "d_model is '24', and has to be a whole number", ""),
    ({"d_model": 24.0}, "d_model is 24.0, and has to be a whole number", ""),
    ({"causal": 1}, "causal is 1, and has to be true or false", ""),
    ({"n_layers": True}, "n_layers is True, and has to be a whole number", ""),
    ({"norm": None}, "norm is None, and has to be a string", ""),
    ({"dropout": "0"}, "dropout is '0', and has to be a number", ""),
]


@pytest.mark.parametrize(("changes", "message", "hint"), FIELDS_REFUSED, ids=[m for _, m, _ in FIELDS_REFUSED])
def test_fields_from_a_file_are_refused_by_name(changes, message, hint):
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict({**SIZES, **changes})
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_all_missing_fields_are_named_at_once():
    with pytest.raises(ConfigError, match=r"^the model configuration lacks d_model, context$"):
        ModelConfig.from_dict({k: v for k, v in SIZES.items() if k not in ("d_model", "context")})


def test_a_whole_number_may_stand_for_a_fraction():
    assert ModelConfig.from_dict({**SIZES, "rope_theta": 500_000}).rope_theta == 500_000


def test_an_unknown_preset_is_answered_with_the_nearest():
    with pytest.raises(UsageError) as caught:
        preset("gpt-2")
    assert caught.value.hint == "did you mean gpt2?"


def counted(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


def test_the_presets_have_the_published_counts():
    assert counted(preset("gpt2")) == 124_439_808
    assert counted(preset("bert-base")) == 109_482_240


@pytest.mark.parametrize("name", PRESETS)
def test_the_formula_counts_the_parameters_of_a_preset(name):
    assert parameter_count(preset(name)) == counted(preset(name))


def _grid():
    """Every architecture above, each with every choice that changes a count, where it can be built."""
    choices = {
        "norm": ("layernorm", "rmsnorm"),
        "gated": (False, True),
        "tied_head": (False, True),
        "head": ("lm", "mlm", "none"),
        "head_bias": (False, True),
        "qkv_bias": (False, True),
    }
    extras = ({}, {"o_bias": False, "qk_norm": True, "d_head": 8}, {"ffn_bias": False, "n_kv_heads": 1}, BERT, LLAMA)
    for words, extra in itertools.product(itertools.product(*choices.values()), extras):
        fields = {**SIZES, "n_layers": 1, **extra, **dict(zip(choices, words, strict=True))}
        fields["causal"] = fields["head"] != "mlm"
        fields["pooler"] = not fields["causal"]
        try:
            yield ModelConfig.of(**fields)
        except ConfigError:
            continue


@pytest.mark.slow
def test_the_formula_counts_the_parameters_of_every_combination():
    grid = list(_grid())
    assert len(grid) > 300
    assert [config for config in grid if parameter_count(config) != counted(config)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_on_disk_holds_each_parameter_once(kind):
    model = Transformer.initialised(config_of(kind), 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(model.config)


def test_one_seed_gives_one_model():
    config = config_of("gpt2")
    first, again, other = (Transformer.initialised(config, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["blocks.0.attention.q.weight"], other["blocks.0.attention.q.weight"])


def test_first_weights_keep_the_size_of_what_they_map():
    """Standard deviation 1/√d_model, and smaller by √(2·layers) where a part is added to the residual stream."""
    weights = Transformer.initialised(config_of("gpt2", d_model=64, d_ff=512, n_layers=8), 0).state_dict()
    assert weights["blocks.3.attention.q.weight"].std().item() == pytest.approx(1 / 8, rel=0.05)
    assert weights["embed.tokens.weight"].std().item() == pytest.approx(1 / 8, rel=0.05)
    assert weights["blocks.3.attention.o.weight"].std().item() == pytest.approx(1 / 8 / 4, rel=0.05)
    assert weights["blocks.3.ffn.down.weight"].std().item() == pytest.approx(1 / 8 / 4, rel=0.05)
    assert weights["blocks.3.norm1.weight"].unique().tolist() == [1.0]
    assert weights["blocks.3.ffn.up.bias"].unique().tolist() == [0.0]


def test_a_model_for_which_there_is_no_memory_is_never_built():
    config = ModelConfig.of(**{**SIZES, "d_model": 1_000_000, "n_heads": 1, "d_ff": 1_000_000})
    with pytest.raises(MemoryShortage, match="the weights take"):
        Transformer.initialised(config, 0)


def test_a_difference_in_the_encoder_is_one_of_the_model() -> None:
    config = config_of("t5, two stacks")
    assert config.encoder is not None
    near = dataclasses.replace(config, encoder=config.encoder.but(window=4))
    assert config.differences(near) == {"encoder.window": (0, 4)}
    alone = config.but(encoder=None, d_source=0, shares_embeddings=False)
    assert config.differences(alone)["encoder"] == (True, False)
