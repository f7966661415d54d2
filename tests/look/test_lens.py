"""The logit lens: its last row is the model's own output to the last bit, each other what numpy makes of that layer."""

import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked, config_of, encoding_of, lively
from caught_gradients import IDS, MODELS, model_of
from covering import along
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from tinytf.errors import UsageError
from tinytf.loading import Model, load
from tinytf.look import lens as module
from tinytf.look.lens import Lens
from tinytf.model.transformer import Transformer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

models = pytest.mark.parametrize("name", MODELS)
EVERYWHERE = tuple(range(len(IDS)))
Array = NDArray[np.float64]


def traced(name: str, dtype: torch.dtype = torch.float32) -> Trace:
    return record(model_of(name, dtype), encoding_of(IDS))


def own_logits(model: Transformer, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0]


def is_the_models_own(found: Lens, logits: torch.Tensor) -> bool:
    """Every probability of the last row, which tracks the whole vocabulary, is exactly that of these logits."""
    expected = logits.softmax(dim=-1, dtype=torch.float64)
    return torch.equal(found.stages[-1].probabilities, expected)


@along({"name": MODELS, "dtype": [torch.float64, torch.float32, torch.bfloat16]})
def test_the_last_row_is_the_models_own_output_to_the_last_bit(name: str, dtype: torch.dtype) -> None:
    trace = traced(name, dtype)
    found = asked(trace.model).lens(trace, position="all", track=range(trace.config.vocab_size))
    assert is_the_models_own(found, own_logits(trace.model, IDS))
    assert found.difference == 0.0
    assert found.holds
    assert not found.stages[-1].divergence.any()
    for row, logits in enumerate(own_logits(trace.model, IDS)):
        assert float(logits[int(found.stages[-1].top_ids[row, 0])]) == float(logits.max())


@models
def test_one_position_is_exactly_what_the_recorded_forward_pass_gave_there(name: str) -> None:
    trace = traced(name)
    rows = ",".join(map(str, trace.recording.logit_rows))
    found = asked(trace.model).lens(trace, position=rows, track=range(trace.config.vocab_size))
    assert is_the_models_own(found, trace.recorded_logits)


@pytest.mark.slow
def test_a_large_vocabulary_that_is_read_in_parts_ends_in_the_models_own_output_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5,000 × 64 weights, which oneDNN multiplies; 3 of 30 positions are read at a time, 2 and 1 summed up."""
    model = lively(config_of("gpt2", vocab_size=5_000, d_model=64, context=64))
    ids = list(range(100, 130))
    trace = record(model, encoding_of(ids))
    tracked = range(0, 5_000, 7)
    whole = asked(model).lens(trace, track=tracked, sublayers=True)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 8 * 5_000 * 3)
    monkeypatch.setattr(module, "_CACHE_BYTES", 8 * 5_000 * 2)
    steps: list[tuple[int, int]] = []
    parts = asked(model).lens(
        trace, track=tracked, sublayers=True, on_progress=lambda done, of: steps.append((done, of))
    )
    assert steps == [(n + 1, 50) for n in range(50)]
    expected = own_logits(model, ids).softmax(dim=-1, dtype=torch.float64)[:, ::7]
    for found in (whole, parts):
        assert torch.equal(found.stages[-1].probabilities, expected)
        assert not found.stages[-1].divergence.any()
    for one, other in zip(whole.stages, parts.stages, strict=True):
        assert torch.allclose(one.probabilities, other.probabilities, rtol=1e-4, atol=1e-9)
        assert torch.allclose(one.divergence, other.divergence, atol=1e-5)


class _Held(TorchDispatchMode):
    """The most bytes of tensors with a vocabulary axis that are alive at once."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.most = vocabulary, 0
        self.alive: list[weakref.ref[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dim() == 2 and result.shape[-1] == self.vocabulary:
            self.alive.append(weakref.ref(result))
        self.alive = [one for one in self.alive if one() is not None]
        tensors = [tensor for one in self.alive if (tensor := one()) is not None]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        self.most = max(self.most, sum(storages.values()))
        return result


def test_the_logits_of_one_layer_are_held_at_a_time_and_no_more_than_a_few_positions_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vocabulary, length = 997, 60
    model = lively(config_of("gpt2", vocab_size=vocabulary, context=64, n_layers=6, tied_head=False))
    trace = record(model, encoding_of(list(range(length))))
    monkeypatch.setattr(module, "_CHUNK_BYTES", 8 * vocabulary * 2)
    with _Held(vocabulary) as held:
        asked(model).lens(trace, sublayers=True)
    one_layer, two_positions = 4 * vocabulary * length, 8 * vocabulary * 2
    weights = 4 * vocabulary * trace.config.d_model  # of the head, seen transposed
    assert one_layer <= held.most <= one_layer + weights + 8 * two_positions


def _norm(x: Array, norm: Any) -> Array:
    gain = 1.0 if norm.weight is None else norm.weight.double().numpy()
    if isinstance(norm, torch.nn.LayerNorm):
        x = x - x.mean(-1, keepdims=True)
    bias = 0.0 if getattr(norm, "bias", None) is None else norm.bias.double().numpy()
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * gain + bias


_ACTIVATION = {
    "gelu": np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def _gated(model: Any, x: Array) -> Array:
    """The mean of several streams (T, n·C), each normed, and each number gated by all through a narrow layer."""
    own, count = model.final_norm, model.config.extra_streams + 1
    streams = np.stack(np.split(x, count, axis=-1), axis=-2)
    sizes = np.sqrt((streams**2).mean(-1, keepdims=True) + model.config.norm_eps)
    normed = (streams / sizes).reshape(x.shape) * own.streams.weight.double().numpy()
    low = _ACTIVATION["silu"](normed @ own.low.weight.double().numpy().T / count)
    gated = normed / (1 + np.exp(-low @ own.gate.weight.double().numpy().T))
    return np.mean(np.split(gated, count, axis=-1), axis=0)


def _merged(model: Any, x: Array) -> Array:
    """The mean of several streams (T, n·C): the first, and the others projected and scaled to its size."""
    first, *others = np.split(x, model.config.extra_streams + 1, axis=-1)
    if model.config.hyper:
        return _weighed(model, x) if not model.config.streams_averaged else np.mean([first, *others], axis=0)
    matrices = np.split(model.final_norm.projection.weight.double().numpy(), len(others))
    others = [stream @ matrix.T for stream, matrix in zip(others, matrices, strict=True)]
    sizes = [np.sqrt((stream**2).mean(-1, keepdims=True)) for stream in (first, *others)]
    return np.mean([first, *(s * sizes[0] / size for s, size in zip(others, sizes[1:], strict=True))], axis=0)


def _weighed(model: Any, x: Array) -> Array:
    """The sum of several streams (T, n·C), each by its own sigmoid plus ε."""
    scale, scores = (getattr(model.final_norm, f"read_{name}") for name in ("scaled", "scores"))
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + model.config.norm_eps)
    weighed = scale.weight.item() * normed @ scores.weight.double().numpy().T + scores.bias.double().numpy()
    streams = np.split(x, model.config.extra_streams + 1, axis=-1)
    shares = 1 / (1 + np.exp(-weighed)) + model.config.hyper_eps
    return np.sum([share[:, None] * stream for share, stream in zip(shares.T, streams, strict=True)], axis=0)


def _numpy_logits(model: Any, x: Array) -> Array:
    """Final norm and head in float64 numpy."""
    if model.config.stream_rank:
        x = _gated(model, x)
    elif model.config.extra_streams:
        x = _norm(_merged(model, x), model.final_norm.norm)
    elif model.config.final_norm:
        x = _norm(x, model.final_norm)
    if model.config.head.kind == "mlm":
        dense = model.head.dense
        x = x @ dense.weight.double().numpy().T + (0 if dense.bias is None else dense.bias.double().numpy())
        x = _norm(_ACTIVATION[model.config.head_activation](x), model.head.norm)
    if model.config.d_embed and model.config.head.kind == "lm":
        x = x @ model.head.projection.weight.double().numpy().T
    bias = model.head.decoder.bias
    logits = x @ model.unembedding.double().numpy().T + (0.0 if bias is None else bias.double().numpy())
    logits = model.config.logit_scale * logits
    cap = model.config.logit_cap
    return cap * np.tanh(logits / cap) if cap else logits


def _states(model: Any) -> dict[str, Array]:
    """The residual stream of a plain forward pass, caught at the modules: what they took, and what they gave."""
    kept: dict[str, Array] = {}
    order = model.config.norm_order

    def gave(name: str) -> Any:
        return lambda module, args, result: kept.__setitem__(name, result[0].double().numpy())

    normed = model.config.embed_norm and not (model.config.d_embed or model.config.positions_unnormed)
    several = model.config.extra_streams > 0
    name = "streams.out" if several else "embed.norm" if normed else "embed.out"
    hooks = [model.streams.register_forward_hook(gave(name))]
    for layer, block in enumerate(model.blocks):
        if order == "post":
            hooks.append(block.norm1.register_forward_hook(gave(f"L{layer}.norm1")))
        elif hasattr(block, "mid") and not several:
            hooks.append(block.mid.register_forward_hook(gave(f"L{layer}.mid")))
        last = "norm2" if order == "post" and not model.config.side_width else "out"
        hooks.append(block.register_forward_hook(gave(f"L{layer}.{last}")))
    with torch.no_grad():
        model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    return kept


@models
def test_every_row_is_what_numpy_makes_of_the_stream_there(name: str) -> None:
    model = model_of(name).requires_grad_(False)
    tracked = (3, 0, 17)
    found = asked(model).lens(record(model, encoding_of(IDS)), position="all", top=4, track=tracked, sublayers=True)
    states = _states(model)
    assert [stage.name for stage in found.stages] == list(states)
    logs = {}
    for at, state in states.items():
        logits = _numpy_logits(model, state)
        logs[at] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    final = logs[found.stages[-1].name]
    for stage in found.stages:
        log = logs[stage.name]
        order = np.argsort(-log, axis=-1, kind="stable")
        assert stage.top_ids.tolist() == order[:, :4].tolist()
        assert np.allclose(stage.top_probabilities, np.exp(np.take_along_axis(log, order[:, :4], -1)), atol=1e-10)
        assert np.allclose(stage.entropy, -(np.exp(log) * log).sum(-1), atol=1e-9)
        assert np.allclose(stage.divergence, (np.exp(final) * (final - log)).sum(-1), atol=1e-9)
        ranks = [[order[row].tolist().index(token) + 1 for token in tracked] for row in EVERYWHERE]
        assert stage.ranks.tolist() == ranks
        assert np.allclose(stage.probabilities, np.exp(log[:, list(tracked)]), atol=1e-10)


def test_tokens_that_tie_share_the_better_rank() -> None:
    model = lively(config_of("gpt2"))
    with torch.no_grad():
        model.embed.tokens.weight[9] = model.embed.tokens.weight[4]  # tied to the unembedding
    found = asked(model).lens(record(model, encoding_of(IDS)), position="all", track=(4, 9))
    for stage in found.stages:
        first, second = stage.ranks.T.tolist()
        assert first == second
    logits = asked(model).trace_of(encoding_of(IDS)).vocabulary("logits", range(len(IDS)))
    assert found.stages[-1].ranks[:, 0].tolist() == [int((row > row[4]).sum()) + 1 for row in logits]


@models
def test_each_stage_is_named_by_the_address_of_the_stream_there(name: str) -> None:
    trace = traced(name)
    model = asked(trace.model)
    found = model.lens(trace, sublayers=True)
    for stage in found.stages:
        assert trace[stage.name].shape == (len(IDS), (trace.config.extra_streams + 1) * trace.config.d_model)
    halves = sum(1 + (len(trace.steps.added_in(layer)) > 1) for layer in range(trace.config.n_layers))
    whole = trace.config.residual == "parallel" or trace.config.extra_streams
    assert len(found.stages) == 1 + (trace.config.n_layers if whole else halves)
    assert [stage.name for stage in model.lens(trace).stages] == [s.name for s in found.stages if "mid" not in s.name][
        :: 2 if trace.config.norm_order == "post" else 1
    ]


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny", device="cpu")


@pytest.fixture(scope="module")
def encoder() -> Model:
    return load("tiny-encoder", device="cpu")


def test_of_a_decoder_every_position_is_read_and_of_an_encoder_the_masked_ones(tiny: Model, encoder: Model) -> None:
    assert tiny.lens("The cat sat").positions == (0, 1, 2)
    masked = encoder.trace("The [MASK] sat on the [MASK].")
    where = tuple(i for i, token in enumerate(masked.tokens) if token.shown == "[MASK]")
    assert encoder.lens(masked).positions == where == (2, 6)
    assert encoder.lens(masked, position="0-1").positions == (0, 1)
    assert encoder.lens("The cat sat").positions == tuple(range(5))


def test_positions_are_numbers_or_tokens_and_tracked_words_are_tokens(tiny: Model) -> None:
    found = tiny.lens("The cat sat", position="cat", track=["·on", "the", "#5"], top=3)
    assert found.positions == (1,)
    on, the = (tiny.tokenizer.encode(word).ids[0] for word in (" on", " the"))
    assert found.tracked == (on, the, 5)
    assert found.stages[0].top_ids.shape == (1, 3)
    assert tiny.lens("The cat sat", position="-1").positions == (2,)
    assert tiny.lens("The cat sat", position="all").positions == (0, 1, 2)
    assert tiny.lens("The cat sat", position="2,0").positions == (2, 0)
    assert int(found.stages[-1].top_ids[0, 0]) == int(tiny.trace("The cat sat").logits_at(1).argmax())


def test_the_tensors_are_the_stages_stacked(tiny: Model) -> None:
    found = tiny.lens("The cat sat", track=["mat"])
    tensors = found.tensors()
    assert tensors["top_ids"].shape == (5, 3, 5)
    assert torch.equal(tensors["entropy"][2], found.stages[2].entropy)
    assert tensors["positions"].tolist() == [0, 1, 2]


def test_what_is_not_there_is_named(tiny: Model) -> None:
    trace = tiny.trace("The cat sat")
    with pytest.raises(UsageError, match="there is no position 3: the text has 3 tokens"):
        tiny.lens(trace, position="3")
    with pytest.raises(UsageError, match="there is no token 2,048"):
        tiny.lens(trace, track=[2048])
    headless = lively(config_of("bert with a pooler"))
    with pytest.raises(UsageError, match="no language-model head"):
        asked(headless).lens(record(headless, encoding_of(IDS)))


def test_weights_that_are_no_numbers_do_not_pass_for_exact() -> None:
    model = model_of("gpt2")
    with torch.no_grad():
        model.blocks[0].ffn.down.bias[0] = math.nan
    found = asked(model).lens(record(model, encoding_of(IDS)))
    assert not found.holds
