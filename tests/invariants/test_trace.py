"""A trace holds what the model computed, leaves nothing behind, and notices when it does not add up."""

import math
from collections.abc import Callable

import covering
import numpy as np
import pytest
import torch
from architectures import KINDS, bias_of_distance, config_of, encoding_of, furthest, lively, rows_of_distance, some_ids
from covering import along
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from tinytf.errors import AddressError, MemoryShortage, UsageError
from tinytf.look.heads.census import census
from tinytf.look.heads.measures import measure_heads, repeated_tokens
from tinytf.model.transformer import Transformer
from tinytf.steps.operations.disentangled import distances_in_words, rows_of
from tinytf.steps.operations.relative import distance_buckets
from tinytf.tolerance import Comparison
from tinytf.trace import record as recording
from tinytf.trace.check import Check, check
from tinytf.trace.hooks import tap_steps
from tinytf.trace.record import record, recording_bytes
from tinytf.trace.summary import statistics
from tinytf.trace.trace import Recording, Trace, pipeline

IDS = [3, 14, 15, 9, 2, 6, 5]
kinds = pytest.mark.parametrize("kind", KINDS)


def traced(kind: str, **changes) -> Trace:
    return record(lively(config_of(kind, **changes)), encoding_of(IDS))


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


# Where in the running model each step that is not recorded passes by: (module, is it the input of that module).
PASSES: dict[str, tuple[str, bool]] = {
    "concat": ("attention.o", True),
    "ffn.act": ("ffn.down", True),
    "q_norm": ("attention.q_norm", False),
    "k_norm": ("attention.k_norm", False),
    "norm1": ("norm1", False),
    "norm2": ("norm2", False),
}
PASSES_PRE = {**PASSES, "in": ("", True), "mid": ("norm2", True)}
PASSES_POST = {**PASSES, "mid": ("norm1", True), "sum": ("norm2", True)}
PASSES_OUTPUT = {**PASSES, "attn_norm": ("attn_norm", False), "ffn_norm": ("ffn_norm", False)}
PASSES_BY_ORDER = {
    "pre": PASSES_PRE,
    "post": PASSES_POST,
    "both": {**PASSES_PRE, **PASSES_OUTPUT},
    "output": {**PASSES_OUTPUT, "mid": ("ffn", True)},
}
PASSES_HEAD = {
    "embed.sum": ("embed.norm", True),
    "head.dense": ("head.dense", False),
    "head.act": ("head.norm", True),
    "head.norm": ("head.norm", False),
    "final.norm": ("final_norm", False),
    "logits": ("head", False),
}


@kinds
def test_derived_steps_are_what_passes_through_the_modules(kind):
    trace = traced(kind)
    model, seen = trace.model, {}

    def watch(step: str, path: str, of_input: bool) -> None:
        def hook(module, args, result):
            seen[step] = args[0][0] if of_input else result[0]

        hooks.append(model.get_submodule(path).register_forward_hook(hook))

    hooks: list = []
    for layer in range(trace.config.n_layers):
        for step, (path, of_input) in PASSES_BY_ORDER[trace.config.at(layer).norm_order].items():
            after = {"concat": "concat_norm", "ffn.act": "ffn.act_norm"}.get(step, "")  # in BitNet
            step = after if trace.steps.has(after, layer) else step
            if step == "mid" and trace.steps.has("cross.mid", layer) and not path.startswith("norm1"):
                step = "cross.mid"  # which the feed-forward reads then
            if step == "mid" and trace.steps.has("read2.streams", layer):
                path = "read2.streams"
            path = "attention.o_a" if step == "concat" and trace.config.o_rank else path
            if step == "mid" and trace.config.hyper:
                step = "hyper2.in"
            if trace.steps.has(step, layer) and not (step == "mid" and trace.config.residual == "parallel"):
                mixer = trace.steps.at("attn", layer).module.partition(".")[0]
                path = trace.steps.at(step, layer).path if step == "norm1" else path
                watch(f"L{layer}.{step}", f"blocks.{layer}.{path}".replace("attention", mixer).rstrip("."), of_input)
    for step, (path, of_input) in PASSES_HEAD.items():
        if step in trace.steps.by_name:
            watch(step, path, of_input)
    with torch.no_grad():
        model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    assert len(seen) >= 4 * len({*trace.config.blocks})
    for address, expected in seen.items():
        found = trace[address]
        if found.dim() > expected.dim():  # heads side by side: (T, H·D) -> (H, T, D)
            expected = expected.unflatten(-1, (len(found), -1)).transpose(0, 1)
        assert furthest(found, expected) < 1e-6, address


@kinds
def test_derived_attention_is_what_the_stepped_core_shows(kind):
    trace = traced(kind)
    seen: dict[tuple[str, int], Tensor] = {}

    def tap(name: str, tensor: Tensor) -> Tensor:
        layer, _, step = name.partition(".")
        seen[step, int(layer[1:])] = tensor[0]
        return tensor

    core = [step.name for step in trace.steps.layer_steps if step.core]
    with torch.no_grad(), tap_steps(trace.model, tap, core):
        trace.model(torch.tensor([IDS]))
    for (step, layer), expected in seen.items():
        finite = torch.isfinite(expected)
        found = trace[f"L{layer}.{step}"]
        assert torch.equal(torch.isfinite(found), finite)
        assert furthest(found[finite], expected[finite]) < 1e-5, (step, layer)
        shared = trace.config.at(layer).heads_per_kv if "kv head" in trace.steps.at(step, layer).axes else 1
        for head in range(trace.config.at(layer).n_heads):
            one, own = trace[f"L{layer}H{head}.{step}"], head // shared
            assert furthest(one[finite[own]], found[own][finite[own]]) < 1e-5


def test_a_trace_of_the_stepped_core_derives_the_very_same_bits():
    """Derivations are the functions that the model runs: from the same q and k, the same attention bit for bit."""
    model = lively(config_of("llama, grouped"))
    seen: dict[str, Tensor] = {}
    with tap_steps(model, lambda name, tensor: seen.setdefault(name, tensor)):
        trace = record(model, encoding_of(IDS))
    for step in ("L0.scores", "L0.scaled", "L0.masked", "L0.weights", "L0.head_out"):
        assert torch.equal(trace[step], seen[step][0]), step


@kinds
def test_recording_changes_no_number(kind):
    model = lively(config_of(kind))
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([IDS]))[0]
    trace = record(model, encoding_of(IDS))
    assert torch.equal(trace.last_hidden, hidden)
    if model.head is not None:
        with torch.no_grad():
            assert furthest(trace["logits"], model.unembed(hidden)) < 1e-6


@kinds
def test_every_step_of_the_table_has_the_shape_that_its_axes_say(kind):
    trace = traced(kind)
    of_layers = [trace.config.at(layer) for layer in range(trace.config.n_layers)]
    source = read_by(trace.model)
    sizes = [{
        "expert": c.experts, "d_expert": c.d_expert, "d_shared": c.d_shared, "switch": 1,
        "token": len(IDS), "query": len(IDS), "key": len(IDS), "head": c.n_heads, "kv head": c.n_kv_heads,
        "source": source, "d_source": c.d_source,
        "d_head": c.d_head, "d_model": c.d_model, "d_embed": c.d_embed, "d_ff": c.d_ff, "vocab": c.vocab_size,
        "n_heads·d_head": c.n_heads * c.d_head, "sink": 1, "d_unembed": c.d_unembed,
        "q_rank": c.q_rank, "kv_rank": c.kv_rank, "d_shared_key": c.rope_width, "d_own": c.d_head - c.rope_width,
        "index_head": c.index_heads, "index_width": c.index_width,
        "index_heads·index_width": c.index_heads * c.index_width,
        "d_value": c.d_value, "n_heads·d_value": c.n_heads * c.d_value, "distance": 2 * c.distances,
        "dt_rank": c.dt_rank, "d_dense": (*c.pooled_dense, c.d_model)[0],
        "d_vector": (c.d_model, *c.pooled_dense)[-1], "d_layer_input": c.d_layer_input,
        "d_model·near": c.d_model * c.side_width,
        "laurel_rank": c.laurel_rank, "stream": c.extra_streams + 1, "stream·stream": (c.extra_streams + 1) ** 2,
        "streams·d_model": (c.extra_streams + 1) * c.d_model, "others·d_model": c.extra_streams * c.d_model,
        "stream_rank": c.stream_rank, "d_ngram": c.d_ngram or c.d_model, "profile": c.profiles, "o_rank": c.o_rank,
        "d_block": c.d_head * (1 + c.block_overlap), "d_index_block": c.index_width * (1 + c.block_overlap),
        "d_memory": 2 * c.d_model, "adapter_rank": c.adapter_rank, "n_kv_heads·dt_rank": c.n_kv_heads * c.dt_rank,
    } for c in of_layers]  # fmt: skip
    for step, layer in trace.steps.rows:
        if step.is_tensor:
            assert trace[step.full_name(layer)].shape == tuple(sizes[layer or 0][axis] for axis in step.axes), step.name


@kinds
def test_every_input_of_a_step_is_a_step_of_the_same_model(kind):
    table = traced(kind).steps
    for step in table.by_name.values():
        assert set(step.inputs) <= set(table.by_name), step.name


@kinds
def test_recorded_steps_of_the_table_are_the_ones_recorded(kind):
    trace = traced(kind)
    promised = {s.full_name(n) for s, n in trace.steps.rows if s.recorded and s.is_tensor}
    assert set(trace.recording.tensors) == promised


def test_the_pipeline_counts_what_numpy_counts():
    trace = traced("gpt2")
    rows = {row.name: row for row in pipeline(trace)}
    values = trace["L1.ffn.act"].numpy().astype("float64")
    found = rows["L1.ffn.act"].statistics
    assert found.mean == pytest.approx(values.mean(), abs=1e-6)
    assert found.std == pytest.approx(values.std(), abs=1e-6)
    assert (found.min, found.max) == (values.min(), values.max())
    assert sum(found.histogram) == found.count == values.size
    assert list(found.histogram) == np.histogram(values, bins=8)[0].tolist()
    seen = len(IDS) * (len(IDS) + 1) // 2
    assert rows["L0.weights"].statistics.count == rows["L0.masked"].statistics.count == seen * trace.config.n_heads


def test_statistics_leave_out_what_is_not_finite():
    found = statistics(torch.tensor([1.0, 3.0, math.nan, -math.inf]))
    assert (found.count, found.not_finite, found.mean, found.min, found.max) == (2, 2, 2.0, 1.0, 3.0)
    assert found.std == pytest.approx(1.0, rel=1e-6)


# What recording leaves behind


@along({"kind": KINDS, "training": [True, False]})
def test_recording_leaves_no_hook_and_the_training_flag(kind, training):
    model = lively(config_of(kind)).train(training)
    record(model, encoding_of(IDS))
    assert hooks_on(model) == 0
    assert all(module.training == training for module in model.modules())


def test_dropout_is_off_while_recording():
    model = lively(config_of("gpt2", dropout=0.5)).train()
    first, again = (record(model, encoding_of(IDS)).last_hidden for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("place", ["embed", "blocks.1.head_out", "blocks.0.ffn.down", "final_norm", "head"])
def test_a_forward_pass_that_breaks_leaves_no_hook_and_the_training_flag(place, monkeypatch):
    model = lively(config_of("gpt2")).train()

    def broken(*args, **kwargs):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(model.get_submodule(place), "forward", broken)
    with pytest.raises(RuntimeError, match="on purpose"):
        record(model, encoding_of(IDS))
    assert hooks_on(model) == 0
    assert model.training


def test_someone_elses_hook_stays():
    model = lively(config_of("gpt2"))
    model.blocks[0].register_forward_hook(lambda *args: None)
    record(model, encoding_of(IDS))
    assert hooks_on(model) == 1


def test_a_trace_keeps_no_gradients():
    assert not any(tensor.requires_grad for tensor in traced("gpt2").recording.tensors.values())


def test_too_long_or_empty_is_refused():
    model = lively(config_of("gpt2"))
    with pytest.raises(UsageError, match="33 tokens are more than the model's context of 32"):
        record(model, encoding_of([1] * 33))
    with pytest.raises(UsageError, match="the text is empty"):
        record(model, encoding_of([]))


# Which logits are recorded


def test_a_decoder_records_the_last_logits_and_derives_the_others():
    trace = traced("gpt2")
    assert trace.recording.logit_rows == (len(IDS) - 1,)
    assert furthest(trace.logits_at(len(IDS) - 1), trace["logits"][-1]) < 1e-6
    assert furthest(trace.logits_at(2), trace["logits"][2]) < 1e-6


def test_an_encoder_records_the_logits_of_its_masks():
    model = lively(config_of("bert with a masked head"))
    trace = record(model, encoding_of([1, 4, 9, 4, 2]), mask_id=4)
    assert trace.recording.logit_rows == (1, 3)
    assert furthest(trace.recorded_logits, trace["logits"][[1, 3]]) < 1e-6
    assert record(model, encoding_of([1, 9, 2]), mask_id=4).recording.logit_rows == (0, 1, 2)


# Does it add up?


@pytest.mark.every
@along({"kind": KINDS, "length": [1, 2, 32]})
def test_a_trace_adds_up(kind, length):
    model = lively(config_of(kind))
    found = check(record(model, encoding_of(some_ids(model.config, 1, length)[0].tolist())))
    assert found.holds, found.telling
    assert found.telling.relative < 1e-5


def corrupted(trace: Trace, name: str, change: Callable[[Tensor], Tensor]) -> Trace:
    tensors = {
        **trace.recording.tensors,
        name: change(trace.recording.tensors[name].clone(memory_format=torch.contiguous_format)),
    }
    return Trace(trace.model, trace.encoding, Recording(tensors, trace.recording.logit_rows, trace.recording.layers))


def one_more(tensor: Tensor) -> Tensor:
    tensor.view(-1)[tensor.numel() // 2] += 0.02
    return tensor


def not_a_number(tensor: Tensor) -> Tensor:
    tensor.view(-1)[-1] = math.nan
    return tensor


def endless(tensor: Tensor) -> Tensor:
    tensor.view(-1)[0] = math.inf
    return tensor


@pytest.mark.parametrize(
    ("kind", "change"),
    [*((kind, one_more) for kind in KINDS), ("gpt2", not_a_number), ("bert with a masked head", endless)],
)
def test_a_corrupted_tensor_does_not_add_up_wherever_it_is(kind, change):
    """Layers that are alike are checked alike: of those the last stands for all, but with --exhaustive."""
    trace = traced(kind)
    every = covering.everything or trace.config.by_layer
    names = [name for name in trace.recording.tensors if every or not name.startswith("L0.")]
    assert [name for name in names if check(corrupted(trace, name, change)).holds] == []


def test_a_trace_does_not_change_with_the_weights():
    trace = traced("gpt2")
    before = {name: tensor.clone() for name, tensor in trace.recording.tensors.items()}
    with torch.no_grad():
        for parameter in trace.model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trace.recording.tensors.items())


def test_recorded_bytes_do_not_grow_with_the_context():
    assert traced("gpt2").recorded_bytes == traced("gpt2", context=4096).recorded_bytes


@pytest.mark.parametrize("name", ["blocks.0.attention.q.weight", "blocks.1.ffn.down.bias", "embed.tokens.weight"])
def test_weights_that_are_no_numbers_do_not_add_up(name):
    model = lively(config_of("gpt2"))
    with torch.no_grad():
        model.get_parameter(name).view(-1)[:5] = math.nan
    assert not check(record(model, encoding_of([0, *IDS]))).holds


WRONG_PARTS = [
    ("gpt2", "embed.out", "embed.out"),
    ("gpt2", "blocks.1.attention.q", "L1.q"),
    ("gpt2", "blocks.1.attention.k", "L1.k"),
    ("gpt2", "blocks.1.attention.v", "L1.v"),
    ("gpt2", "blocks.1.head_out", "L1.head_out"),
    ("gpt2", "blocks.1.attention.o", "L1.attn"),
    ("gpt2", "blocks.1.ffn.up", "L1.ffn.hidden"),
    ("llama, grouped", "blocks.1.ffn.gate", "L1.ffn.gate"),
    ("gpt2", "blocks.1.ffn.down", "L1.ffn"),
    ("gpt2", "blocks.0.out", "L0.out"),
    ("the paper's encoder", "blocks.0.norm2", "L0.norm2"),
    ("gpt2", "final_norm", "final.norm"),
    ("bert with a masked head", "embed.norm", "embed.norm"),
    ("bert with a masked head", "embed", "L0.in"),
    ("bert with a masked head", "head", "logits"),
]


@pytest.mark.parametrize(("kind", "part", "step"), WRONG_PARTS)
def test_a_part_that_computes_something_else_is_named(kind, part, step):
    """All that follows from the wrong numbers is consistent with them, so only that one comparison can fail."""
    model = lively(config_of(kind))
    hook = model.get_submodule(part).register_forward_hook(lambda module, args, result: result * 1.01)
    trace = record(model, encoding_of(IDS))
    hook.remove()
    found = check(trace)
    assert [item.step for item in found.items if not item.holds] == [step]
    assert not found.holds
    assert found.telling.step == step


def test_weights_changed_after_recording_do_not_add_up():
    trace = traced("llama, grouped")
    with torch.no_grad():
        trace.model.blocks[1].attention.k.weight[3, 3] += 0.5
    found = check(trace)
    assert not found.holds
    assert found.telling.step == "L1.k"


def test_an_endless_difference_to_an_endless_value_does_not_hold():
    found = Check((Comparison("L0.q", "", 0.0, 1.0, 1e-6), Comparison("L0.k", "", math.inf, math.inf, math.inf)))
    assert not found.holds


@along({"kind": [kind for kind in KINDS if config_of(kind).head.kind != "none"], "seed": range(8)})
def test_a_trace_in_float64_adds_up(kind, seed):
    found = check(record(lively(config_of(kind), seed).double(), encoding_of(IDS)))
    assert found.holds, found.telling


@pytest.mark.parametrize("kind", [kind for kind in KINDS if config_of(kind).head.kind == "none"])
def test_a_trace_of_hidden_states_in_float64_adds_up(kind):
    found = check(record(lively(config_of(kind)).double(), encoding_of(IDS)))
    assert found.holds, found.telling


@along({"kind": KINDS, "dtype": [torch.bfloat16, torch.float16]})
def test_a_trace_in_half_precision_adds_up(kind, dtype):
    found = check(record(lively(config_of(kind)).to(dtype), encoding_of(IDS)))
    assert found.holds, found.telling


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_normed_sinusoidal_embeddings_add_up_in_half_precision(dtype):
    model = lively(config_of("the paper's encoder", embed_norm=True)).to(dtype)
    found = check(record(model, encoding_of(IDS)))
    assert found.holds, found.telling


@along({"kind": KINDS, "dtype": [torch.bfloat16, torch.float64]})
def test_everything_recorded_has_the_type_of_the_model(kind, dtype):
    trace = record(lively(config_of(kind)).to(dtype), encoding_of(IDS))
    chosen = {f"L{layer}.{step.name}" for step, layer in trace.steps.rows if step.is_choice}  # of scores in float32
    others = trace.recording.tensors.keys() - chosen
    assert {name for name in others if trace.recording.tensors[name].dtype != dtype} == set()


def test_a_check_names_its_first_wrong_step():
    trace = traced("gpt2")
    found = check(corrupted(trace, "L1.attn", one_more)).to_dict()
    assert (found["holds"], found["at"]) == (False, "L1.attn")
    assert found["difference"] == pytest.approx(0.02, abs=1e-4)
    fine = check(trace).to_dict()
    assert fine["holds"]
    assert fine["steps"] == found["steps"]


# Measures of heads


def test_measures_of_heads_are_their_definitions():
    trace = traced("gpt2")
    weights = trace["L1H2.weights"].double()
    by_hand = {
        "entropy": sum(-w * math.log(w) for row in weights.tolist() for w in row if w) / len(IDS),
        "distance": sum(w * (i - j) for i, row in enumerate(weights.tolist()) for j, w in enumerate(row)) / len(IDS),
        "previous": sum(float(weights[i, i - 1]) for i in range(1, len(IDS))) / (len(IDS) - 1),
        "first": sum(float(weights[i, 0]) for i in range(1, len(IDS))) / (len(IDS) - 1),
        "self": sum(float(weights[i, i]) for i in range(len(IDS))) / len(IDS),
    }
    for name, expected in by_hand.items():
        assert float(measure_heads(trace, name)[1, 2]) == pytest.approx(expected, abs=1e-5), name


def test_repeats_are_scored_on_the_weights_of_the_model():
    model = lively(config_of("gpt2"))
    found = census(model, length=6, count=2, seed=1)
    ids = repeated_tokens(31, 6, 2, 1)
    assert torch.equal(ids[:, :6], ids[:, 6:])
    traces = [record(model, encoding_of(row.tolist())) for row in ids]
    weights = torch.stack([trace["L1H3.weights"] for trace in traces])
    induction = torch.stack([weights[:, 6 + i, i + 1] for i in range(6)]).mean()
    previous = torch.stack([weights[:, i, i - 1] for i in range(1, 12)]).mean()
    assert float(found.score("induction")[1, 3]) == pytest.approx(float(induction), abs=1e-6)
    assert float(found.score("previous")[1, 3]) == pytest.approx(float(previous), abs=1e-6)
    logits = torch.stack([trace["logits"] for trace in traces])
    surprise = -logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    assert found.first_loss == pytest.approx(float(surprise[:, :5].mean()), abs=1e-5)
    assert found.second_loss == pytest.approx(float(surprise[:, 6:].mean()), abs=1e-5)


@kinds
def test_what_a_recording_holds_is_known_before(kind):
    model = lively(config_of(kind))
    for layers in [(0,), (1,), (0, 1), ()]:
        trace = record(model, encoding_of(range(3, 12)), layers=layers)
        rows = len(trace.recording.logit_rows)
        needed = recording_bytes(model.config, 9, rows, 4, trace.recording.layers, read_by(model))
        assert needed == trace.recorded_bytes


def read_by(model: Transformer) -> int:
    """The tokens of the text that a model reads; 0 for a model of one stack."""
    return 0 if model.reads is None else model.reads.states.shape[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_of_some_layers_adds_up_and_says_which_it_has(kind):
    model = lively(config_of(kind, n_layers=4))
    whole, part = (record(model, encoding_of(range(3, 12)), layers=layers) for layers in (None, (2, 1, 2)))
    taken = {at for layer in (1, 2) for _, at in part.steps.taken(layer).values() if at is not None}
    layers = tuple(sorted({1, 2, *taken}))  # whose keys or norm it takes
    assert part.recording.layers == layers
    with_weights = [layer for layer in (1, 2) if whole.steps.has("weights", layer)]
    assert all(torch.equal(part[f"L{layer}.weights"], whole[f"L{layer}.weights"]) for layer in with_weights)
    assert torch.equal(part.last_hidden, whole.last_hidden)
    assert check(part).holds
    assert {row.layer for row in pipeline(part)} == {None, *layers}
    with pytest.raises(AddressError) as caught:
        part["L3.attn"]
    assert (caught.value.message, caught.value.hint) == (
        "layer 3 was not recorded",
        f"recorded: {', '.join(map(str, layers))}",
    )


def test_a_recording_larger_than_the_free_memory_is_refused(monkeypatch):
    model = lively(config_of("llama, grouped", n_layers=4))
    needed = recording_bytes(model.config, 9, 1, 4, range(4))
    one = recording_bytes(model.config, 9, 1, 4, (0,))
    monkeypatch.setattr(recording, "UNASKED", 0)
    monkeypatch.setattr(recording, "free_bytes", lambda device: (needed + one) // 2)
    with pytest.raises(MemoryShortage, match="recording 9 tokens through 4 layers needs") as caught:
        record(model, encoding_of(range(3, 12)))
    assert "--layer 0 --step weights" in caught.value.hint
    assert "--force" in caught.value.hint
    assert record(model, encoding_of(range(3, 12)), layers=(0,)).recorded_bytes == one
    assert record(model, encoding_of(range(3, 12)), force=True).recorded_bytes == needed
    monkeypatch.setattr(recording, "free_bytes", lambda device: one - 1)
    with pytest.raises(MemoryShortage, match="through 1 layer needs") as caught:
        record(model, encoding_of(range(3, 12)), layers=(0,))
    assert "--layer 0" not in caught.value.hint


def test_a_bias_of_distance_is_the_same_in_all_layers() -> None:
    trace = traced("mpnet, a bias of distance")
    bias = torch.from_numpy(bias_of_distance(trace["L0.B"].numpy(), len(IDS)))
    for layer in range(2):
        assert furthest(trace.step("relative", layer) - trace.step("scaled", layer), bias.float()) < 1e-6
    far = distance_buckets(200, 200, 32, torch.device("cpu"))
    assert torch.equal(far, torch.from_numpy(bias_of_distance(np.arange(32.0)[:, None], 200)[0]).long())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("deberta")])
def test_tokens_score_distances_by_their_rows_of_the_table(kind: str) -> None:
    trace = traced(kind)
    config = trace.config
    rows = torch.from_numpy(rows_of_distance(config.distances, config.farthest, len(IDS)))
    for layer in range(2):
        q, k, pos_k, pos_q = (trace.step(name, layer) for name in ("q", "k", "pos_k", "pos_q"))
        to_position = torch.einsum("hid,hijd->hij", q, pos_k[:, rows])
        to_content = torch.einsum("hjd,hijd->hij", k, pos_q[:, rows])
        assert furthest(trace.step("c2p", layer) - trace.step("scores", layer), to_position) < 1e-5
        assert furthest(trace.step("p2c", layer) - trace.step("c2p", layer), to_content) < 1e-5
        read = trace.step("distances_norm" if config.distance_norm else "distances", layer)
        names = ("W_KD", "b_KD") if config.distance_matrices else ("W_K", "b_K")
        matrix = trace[f"L{layer}.{names[0]}"]
        bias = trace[f"L{layer}.{names[1]}"] if config.k_bias else 0.0
        assert furthest(pos_k.transpose(0, 1).flatten(1), read @ matrix + bias) < 1e-5


@pytest.mark.parametrize(("reach", "farthest"), [(256, 512), (4, 16), (7, 40), (5, 0)])
def test_a_distance_has_the_row_that_transformers_gives_it(reach: int, farthest: int) -> None:
    apart = torch.arange(-700, 701)
    bucket = make_log_bucket_position(apart, reach, farthest).long() if farthest else apart
    assert torch.equal(rows_of(apart, reach, farthest), (bucket + reach).clamp(0, 2 * reach - 1))


def test_rows_of_distances_are_named_by_where_the_key_is() -> None:
    named = distances_in_words(config_of("deberta v3, distances through the matrices of tokens"))
    assert named == ["16-31 after", "3-15 after", "2 after", "1 after", "0", "1 before", "2 before", "3-31 before"]


def test_sinks_take_part_in_the_softmax_and_are_dropped() -> None:
    trace = traced("gpt-oss, sinks and windows by layer")
    for layer in range(2):
        scores, logit = trace.step("masked", layer), trace[f"L{layer}.sink.logit"]
        beside = torch.cat((scores, logit[:, None, None].expand(-1, len(IDS), 1)), dim=-1).softmax(dim=-1)
        assert furthest(trace.step("weights", layer), beside[..., :-1]) < 1e-6
        assert furthest(trace.step("sink", layer), beside[..., -1:]) < 1e-6
    found = check(trace)
    assert found.holds
    assert any("share of the sink" in item.what for item in found.items)
