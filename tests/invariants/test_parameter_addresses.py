"""Addresses of parameters: every parameter of every architecture has one, and it names the right numbers."""

from functools import cache

import click
import pytest
import torch
from architectures import KINDS, config_of, encoding_of, lively
from torch import Tensor

from tinytf.errors import AddressError
from tinytf.steps.table import STEPS, StepTable
from tinytf.trace.address import parse_address
from tinytf.trace.parameters import ParameterAddress, parameter_names, parse_parameter
from tinytf.trace.record import record
from tinytf_cli.options import complete_address

kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def table_of(kind: str) -> StepTable:
    return StepTable(config_of(kind))


def parameter(text: str, kind: str) -> ParameterAddress:
    found = parse_parameter(text, table_of(kind))
    assert found is not None
    return found


BIAS = "attention.relative.weight"
DISTANCES = "attention.distances.weight"
EXPERTS = "experts, two a token"


def addresses(kind: str) -> list[str]:
    """Every parameter of a kind."""
    config, table = config_of(kind), table_of(kind)
    own = [(name, step) for name, (step, one) in table.parameters.items() if not one.absent]
    inside = [(i, name, step) for i in range(config.n_layers) for name, step in own if step.in_layer]
    outside = [name for name, step in own if not step.in_layer]
    places = [(i, name) for i, name, step in inside if table.has_parameter(name, i)]
    first = (table.first_layer_with(table.parameter(name, i)[0].module, i) for i, name in places)
    return outside + [f"L{i}.{name}" for (i, name), own in zip(places, first, strict=True) if own == i]


@kinds
def test_every_parameter_of_a_model_has_one_address(kind: str) -> None:
    """Those of what a model reads have theirs in a model of its own."""
    named = [name for name, _ in lively(config_of(kind)).named_parameters() if not name.startswith("encoder.")]
    found = [parameter(text, kind) for text in addresses(kind)]
    paths = [one.path(one.layers[0] if one.layers else None) for one in found]
    assert sorted(paths) == sorted(named)
    for path, one in zip(paths, found, strict=True):
        again = parse_parameter(path, table_of(kind))
        assert again is not None
        assert str(again) == str(one)


@pytest.mark.parametrize("kind", ["gpt2", "bert with a masked head", "qwen3, normed queries and wide heads"])
def test_what_a_shell_completes_are_names_of_parameters(kind: str) -> None:
    """It knows no architecture, so it offers those of each; a model has them, or says why it does not."""
    items = [
        item.value
        for begun in ("", "L1.")
        for item in complete_address(click.Context(click.Command("trace")), click.Option(["--at"]), begun)
    ]
    table = table_of(kind)
    steps = {row.full_name(1) for row in STEPS}
    offered = [one for one in items if one not in steps]
    assert {name.removeprefix("L1.") for name in offered} >= {
        "E",
        "W_U",
        "W_Q",
        "ffn.W_up",
        "norm1.gain",
        "head.norm.gain",
    }
    absent = {name for name, (_, one) in table.parameters.items() if one.absent}
    for name in offered:
        known = parameter_names(table)[name.removeprefix("L1.")]
        assert known in absent or parse_parameter(name, table) is not None


@kinds
def test_a_parameter_is_that_of_the_model_and_a_matrix_is_read_from_in_to_out(kind: str) -> None:
    model = lively(config_of(kind))
    tables = [f"embed.{name}.weight" for name in ("tokens", "positions", "types")] + [
        f"blocks.0.{BIAS}",
        f"blocks.0.{DISTANCES}",
    ]
    for text in addresses(kind):
        one = parameter(text, kind)
        path = one.path(one.layers[0] if one.layers else None)
        own = dict(model.named_parameters())[path]
        as_stored = (
            own.dim() < 2
            or path in tables
            or any(
                name in path
                for name in (
                    "ple.tokens",
                    "relative",
                    "ngram.tokens",
                    "ngram.conv",
                    "profile",
                    "bias",
                    "_conv",
                    ".scan",
                    ".segments",
                )
            )
        )
        assert torch.equal(one.tensor(model), own if as_stored else own.mT), text
        assert len(one.axes) == own.dim()


@kinds
def test_a_linear_step_is_its_input_times_its_address(kind: str) -> None:
    """x·W + b with what the addresses give, against what the model computed."""
    model = lively(config_of(kind)).double()
    trace = record(model, encoding_of([3, 1, 2]))
    biased = {text for text in addresses(kind) if ".b" in text or text == "b_U"}
    for letter, step in (("W_Q", "q"), ("W_K", "k_own" if trace.config.kv_rank else "k"), ("W_V", "v")):
        bias = letter.replace("W", "b")
        if not trace.steps.at(step, 1).module:
            continue  # values that are the keys have no matrix
        source, layer = trace.steps.sources(trace.steps.at(step, 1), 1)[0]
        x = trace.step(source, layer)
        for head in range(model.config.at(1).n_heads):
            weight = trace[f"L1H{head}.{letter}"]
            if (groups := trace.config.qkv_groups) > 1:  # each column is of one of the groups of inputs
                columns = head * weight.shape[1] + torch.arange(weight.shape[1])
                of_group = columns * groups // (trace.config.n_heads * weight.shape[1])
                made = (x.unflatten(-1, (groups, -1))[:, of_group] * weight.T).sum(-1)
            else:
                made = x @ weight
            made = made + trace[f"L1H{head}.{bias}"] if f"L1.{bias}" in biased else made
            assert torch.allclose(made, trace[f"L1H{head}.{step}"], atol=1e-12), (letter, head)
    if trace.config.o_rank:
        return  # its heads are compressed in groups before W_O
    given = trace.steps.at("concat", 1).inputs[0]
    if trace.config.out_norm:
        heads = trace["L1.concat_norm"].unflatten(-1, (model.config.n_heads, -1)).transpose(0, 1)
        assert torch.allclose(sum(heads @ trace["L1H*.W_O"]), trace["L1.attn"], atol=1e-12)
        return
    out = sum(
        (trace[f"L1H{head}.{given}"] @ trace[f"L1H{head}.W_O"] for head in range(model.config.at(1).n_heads)),
        torch.zeros(()),
    )
    out = out + trace["L1.b_O"] if "L1.b_O" in biased else out
    assert torch.allclose(out, trace["L1.attn"], atol=1e-12)


def test_an_expert_has_its_matrices_and_its_column_of_the_router() -> None:
    trace = record(lively(config_of(EXPERTS)), encoding_of([1, 2, 3]))
    named = dict(trace.model.named_parameters())
    assert torch.equal(trace["L1E2.expert.W_up"], named["blocks.1.ffn.experts.up.weight"][2].mT)
    assert torch.equal(trace["L1E2.expert.b_up"], named["blocks.1.ffn.experts.up.bias"][2])
    assert torch.equal(trace["L1E2.ffn.W_router"], named["blocks.1.ffn.router.weight"][2])
    assert trace["L1E2.ffn.W_router[5]"] == named["blocks.1.ffn.router.weight"][2, 5]
    assert trace["L1E2.ffn.b_router"] == named["blocks.1.ffn.router.bias"][2]
    assert torch.equal(trace["L*E1-3.ffn.W_router"][1, 2], trace["L1E3.ffn.W_router"])


def test_an_expert_that_only_passes_on_has_a_column_of_the_router_alone() -> None:
    kind = "longcat, a shortcut around two layers to experts, some without matrices"
    trace = record(lively(config_of(kind)), encoding_of([1, 2, 3]))
    assert trace["L2E4.ffn.W_router"].shape == (24,)
    assert trace["L2E*.expert.W_up"].shape == (3, 24, 9)
    with pytest.raises(AddressError, match="there is no learned expert 4: the model has 3 learned experts, 0 to 2"):
        trace["L2E4.expert.W_up"]


def test_layers_and_heads_are_stacked_in_front() -> None:
    trace = record(lively(config_of("llama, grouped")), encoding_of([1, 2, 3]))
    assert trace["L*H*.W_Q"].shape == (2, 4, 24, 6)
    assert torch.equal(trace["L*H1.W_Q"][1], trace["L1H1.W_Q"])
    assert torch.equal(trace["L0H2-3.W_K"][0], trace["L0H2-3.W_K"][1])  # one key head
    assert parameter("L0H3.W_K", "llama, grouped").note == "2 query heads share one key head"


def test_a_cell_is_an_element_and_a_token_is_of_the_vocabulary_wherever_that_is() -> None:
    trace = record(lively(config_of("llama, grouped")), encoding_of([7, 9], ("The", "·cat")))
    named: dict[str, Tensor] = dict(trace.model.named_parameters())
    table, unembedding = named["embed.tokens.weight"], named["head.decoder.weight"]
    assert torch.equal(trace["E[cat]"], table[9])
    assert torch.equal(trace["E[9]"], table[9])
    assert trace["E[cat,3]"] == table[9, 3]
    assert torch.equal(trace["W_U[·cat]"], unembedding[9])
    assert torch.equal(trace["W_U[3]"], unembedding[:, 3])
    assert trace["W_U[3,cat]"] == unembedding[9, 3]
    assert trace["L1H2.W_Q[5,-1]"] == named["blocks.1.attention.q.weight"][17, 5]
    assert trace["L1H2.W_O[4,5]"] == named["blocks.1.attention.o.weight"][5, 16]
    assert parameter("W_U[·cat]", "llama, grouped").axes == ("d_model",)
    assert parameter("E[3]", "llama, grouped").axes == ("d_model",)
    assert parameter("L0H1.W_O[3]", "llama, grouped").axes == ("d_model",)


@pytest.mark.parametrize(
    ("other", "kind", "name"),
    [
        ("ffn.W1", "gpt2", "ffn.W₁"),
        ("ffn.W_2", "gpt2", "ffn.W₂"),
        ("ffn.W_up", "gpt2", "ffn.W₁"),
        ("ffn.b_down", "gpt2", "ffn.b₂"),
        ("ffn.up.weight", "gpt2", "ffn.W₁"),
        ("attention.q_norm.weight", "rotary and both ways", "q_norm.gain"),
    ],
)
def test_a_parameter_is_known_by_other_names(other: str, kind: str, name: str) -> None:
    assert str(parameter(f"L1.{other}", kind)) == f"L1.{name}"
    assert set(parameter_names(table_of(kind)).values()) == set(table_of(kind).parameters)


def test_a_tied_unembedding_is_the_embeddings_turned() -> None:
    tied, model = parameter("W_U[:,3]", "gpt2"), lively(config_of("gpt2"))
    assert (tied.note, tied.axes) == ("the head is tied to the embeddings, W_U = Eᵀ", ("d_model",))
    assert torch.equal(tied.tensor(model), model.embed.tokens.weight[3].detach())
    assert str(parameter("W_E[3]", "gpt2")) == "E[3]"  # as TransformerLens calls it


@pytest.mark.parametrize(
    ("other", "kind", "name", "note"),
    [
        ("transformer.h.1.attn.c_proj.weight", "gpt2", "L1.W_O", "here, shown from in to out"),
        ("h.0.mlp.c_fc.bias[3]", "gpt2", "L0.ffn.b₁[3]", "h.0.mlp.c_fc.bias is L0.ffn.b₁ here"),
        ("wte.weight[cat]", "gpt2", "E[cat]", "wte.weight is E here"),
        ("model.layers.0.self_attn.k_proj.weight", "llama, grouped", "L0.W_K", "here, shown from in to out"),
        ("model.norm.weight", "llama, grouped", "final.norm.gain", "model.norm.weight is final.norm.gain here"),
        ("blk.1.ffn_gate.weight", "llama, grouped", "L1.ffn.W_gate", "here, shown from in to out"),
        ("lm_head.weight", "llama, grouped", "W_U", "lm_head.weight is W_U here, shown from in to out"),
    ],
)
def test_a_name_of_a_checkpoint_is_understood_and_said_in_ours(other: str, kind: str, name: str, note: str) -> None:
    found = parameter(other, kind)
    assert str(found) == name
    assert found.note.endswith(note)


def test_a_fused_tensor_of_a_checkpoint_says_what_is_in_it() -> None:
    with pytest.raises(AddressError, match="several parameters") as caught:
        parameter("h.0.attn.c_attn.weight", "gpt2")
    assert caught.value.hint == "name one: L0.W_Q, L0.W_K, L0.W_V"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("W_U", "bert with a pooler", "this model has no W_U: this model has no language-model head"),
        ("L0.b_Q", "llama, grouped", "this model has no b_Q: q is computed without a bias"),
        ("L0.norm1.bias", "llama, grouped", "this model has no norm1.bias: RMSNorm has a gain alone"),
        ("P", "llama, grouped", "this model has no P: positions are rotary"),
        ("P", "the paper's encoder", "this model has no P: positions are sines and cosines, computed and not learned"),
        ("S", "gpt2", "this model has no S: this model has no token types"),
        ("L0.ffn.W_gate", "gpt2", "this model has no ffn.W_gate: the feed-forward of this model has no gate"),
        ("pooled.W", "gpt2", "this model has no pooled.W: this model has no pooler"),
        ("W_Q", "gpt2", "W_Q is a parameter of every layer"),
        ("L0.E", "gpt2", "'E' is not inside a layer"),
        ("L0H1.ffn.W₁", "gpt2", "ffn.W₁ is not split into heads"),
        ("L0H4.W_Q", "gpt2", "there is no head 4: the model has 4 heads, 0 to 3"),
        ("blocks.2.attention.q.weight", "gpt2", "there is no layer 2: the model has 2 layers, 0 to 1"),
        ("E[1,2,3]", "gpt2", "E has 2 axes, vocab, d_model"),
        ("L1E2.expert.W_up[1,2,3]", EXPERTS, "L1E2.expert.W_up has 2 axes, d_model, d_expert"),
        ("L1E2.ffn.b_router[0]", EXPERTS, "L1E2.ffn.b_router is one number"),
        ("L1H2.ffn.W_router", EXPERTS, "ffn.W_router is not split into heads"),
    ],
)
def test_a_parameter_that_is_not_there_says_why(text: str, kind: str, message: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_parameter(text, StepTable(config_of(kind)))
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("E[31]", "vocab 31 is out of range: there are 31, 0 to 30"),
        ("L0.W_Q[cat]", "d_model takes a number, and 'cat' is not one"),
        ("E[dog]", "no token is 'dog'"),
    ],
)
def test_a_cell_that_is_not_there_says_what_is(text: str, message: str) -> None:
    trace = record(lively(config_of("gpt2")), encoding_of([1], ("cat",)))
    with pytest.raises(AddressError) as caught:
        trace[text]
    assert caught.value.message == message


@pytest.mark.parametrize("text", ["L0.weights", "L0", "logits", "", "L0.W_QQ", "E["])
def test_what_names_no_parameter_is_left_to_the_steps(text: str) -> None:
    assert parse_parameter(text, StepTable(config_of("gpt2"))) is None


def test_a_step_is_asked_for_where_a_parameter_is_named() -> None:
    table = StepTable(config_of("gpt2"))
    with pytest.raises(AddressError) as caught:
        parse_address("L0.W_Q", table)
    assert str(caught.value.message) == "W_Q is a parameter, not a step"
    with pytest.raises(AddressError) as caught:
        parse_address("L0.W_QQ", table)
    assert (caught.value.message, caught.value.hint) == ("there is no step 'W_QQ'", "did you mean W_Q?")
