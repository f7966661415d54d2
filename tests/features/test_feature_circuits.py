"""Feature circuits: edges against sums, a forward pass by hand and plain hooks; pruning against the dense algorithm."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, lively
from schemas import hold
from torch import Tensor

from tinytf.api import Model
from tinytf.cause.circuit.graph import graph_of
from tinytf.config import ModelConfig
from tinytf.errors import AddressError, CheckpointError, UsageError
from tinytf.features.coder import SparseCoder
from tinytf.features.feature_circuit.edges import Attribution, Edges
from tinytf.features.feature_circuit.influence import prune, scores, strongest_paths
from tinytf.features.feature_circuit.report import FeatureCircuit, feature_circuit
from tinytf.features.train_transcoders import read_by
from tinytf.features.transcoders import TranscoderSet, open_transcoders
from tinytf.loading import load
from tinytf.report import ignore_progress
from tinytf.steps.table import table_of
from tinytf_cli.main import run

TEXT = "3 14 15 9 2 6"
NOT_LINEAR = {
    "olmo, norms that learn nothing": "L0.v_clip",
    "diffllama, maps subtracted in pairs of heads": "L0.head_norm",
}
"""Kinds whose values pass through more than a matrix and a norm."""
F = 16


def random_set(config: ModelConfig, *, across: bool, without: int | None = None) -> TranscoderSet:
    """Transcoders of random directions in float64, some with a skip connection, of all layers but ``without``."""
    draw, table, width = torch.Generator().manual_seed(7), table_of(config), config.d_model

    def numbers(*sizes: int, size: float = 1.0) -> Tensor:
        return torch.randn(*sizes, generator=draw, dtype=torch.float64) * size

    layers = [n for n in range(config.n_layers) if table.has(table.feed_forward.name, n) and n != without]
    coders = [
        SparseCoder(
            f"layer {n}", "circuit-tracer", "jumprelu", numbers(width, F), numbers(F), numbers(F, width, size=0.2),
            numbers(width), read_by(table, n), f"L{n}.ffn", threshold=numbers(F).abs(), subtracts_bias=False,
            is_transcoder=True, skip=numbers(width, width, size=0.1) if n % 2 else None,
        )
        for n in layers
    ]  # fmt: skip
    above = [numbers(F, len(layers) - n - 1, width, size=0.2) for n in range(len(layers))]
    return TranscoderSet("random", "circuit-tracer", tuple(coders), tuple(above) if across else ())


@cache
def of_kind(kind: str) -> Model:
    return asked(lively(config_of(kind, n_layers=3)).double())


@cache
def circuit_of(kind: str, across: bool) -> FeatureCircuit:
    model = of_kind(kind)
    return feature_circuit(model, TEXT, random_set(model.config, across=across), node_share=1.0, edge_share=1.0)


def in_float32(coder: SparseCoder) -> SparseCoder:
    tensors = {name: value.float() for name, value in vars(coder).items() if isinstance(value, Tensor)}
    return SparseCoder(**{**vars(coder), **tensors})


def takes(kind: str) -> str:
    """Why a kind of model has no circuits, of any sort; empty if it has them."""
    try:
        graph_of(lively(config_of(kind)))
    except UsageError as error:
        return error.message
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_edges_and_bias_add_up_to_every_feature_and_logit_or_the_model_is_refused(kind: str) -> None:
    model = asked(lively(config_of(kind)).double())
    if refused := takes(kind):
        with pytest.raises(UsageError) as error:
            feature_circuit(model, TEXT, random_set(model.config, across=False))
        assert error.value.message == refused
        return
    for across in (False, True):
        transcoders = random_set(model.config, across=across)
        if kind in NOT_LINEAR:
            with pytest.raises(UsageError, match=f"{NOT_LINEAR[kind]} is not linear with attention patterns held"):
                feature_circuit(model, TEXT, transcoders)
            attribution = Attribution(model.transformer, [3, 14, 15, 9, 2, 6], range(6), transcoders)
            edges = attribution.edges([1], torch.ones(1), None, ignore_progress)
            assert edges.difference > 1e-3  # so it is refused for a reason
            continue
        circuit = feature_circuit(model, TEXT, transcoders, most=None, left_out=0)
        assert circuit.features == circuit.traced > 20
        assert circuit.edges.difference < 1e-12


def test_a_layer_without_a_transcoder_is_all_error() -> None:
    model = of_kind("gpt2")
    circuit = feature_circuit(model, TEXT, random_set(model.config, across=False, without=1), most=None, node_share=1.0)
    assert circuit.edges.difference < 1e-12
    assert {node.layer for node in circuit.nodes if node.kind == "feature"} == {0, 2}
    assert {node.layer for node in circuit.nodes if node.kind == "error"} == {0, 1, 2}


def direct_effect(model: Model, vector: Tensor, layer: int, position: int) -> tuple[dict[int, Tensor], Tensor]:
    """GPT-2 by hand: what a vector that the feed-forward of ``layer`` adds changes in each later norm2 and final.norm.

    Patterns and the standard deviations of norms are those of the trace.
    """
    trace, c = model.trace(TEXT), model.config
    weights = {name: tensor.detach() for name, tensor in model.transformer.named_parameters()}

    def normed(stream: Tensor, change: Tensor, name: str) -> Tensor:
        sigma = (stream.var(-1, keepdim=True, unbiased=False) + c.norm_eps).sqrt()
        return (change - change.mean(-1, keepdim=True)) / sigma * weights[f"{name}.weight"]

    change = torch.zeros_like(trace["L0.in"])
    change[position] = vector
    read = {}
    for later in range(layer + 1, c.n_layers):
        at = f"blocks.{later}"
        x = normed(trace[f"L{later}.in"], change, f"{at}.norm1")
        values = (x @ weights[f"{at}.attention.v.weight"].T).unflatten(-1, (c.n_heads, -1)).transpose(0, 1)
        heads = trace[f"L{later}.weights"] @ values  # (H, T, D)
        change = change + heads.transpose(0, 1).flatten(1) @ weights[f"{at}.attention.o.weight"].T
        read[later] = normed(trace[f"L{later}.mid"], change, f"{at}.norm2")
    return read, normed(trace[f"L{c.n_layers - 1}.out"], change, "final_norm")


def test_edges_are_those_of_a_forward_pass_by_hand() -> None:
    model = of_kind("gpt2")
    transcoders = random_set(model.config, across=False)
    transcoders = replace(transcoders, coders=tuple(replace(coder, skip=None) for coder in transcoders.coders))
    circuit = feature_circuit(model, TEXT, transcoders, most=None)
    edges, sources = circuit.edges, circuit.edges.sources
    unembedding = model.transformer.unembedding.detach()
    checked = 0
    for source in range(0, sources.n_features, 5):
        layer, position, number = (int(of[source]) for of in (sources.layer, sources.position, sources.number))
        vector = transcoders.coders[layer].decoder[number] * sources.activation[source]
        read, last = direct_effect(model, vector, layer, position)
        logits = unembedding @ last[-1]
        for row, own in enumerate(edges.own.tolist()):
            if own < 0:
                expected = logits[edges.targets[row]] - logits.mean()
            elif int(sources.layer[own]) <= layer:
                expected = torch.zeros(())
            else:
                at = int(sources.layer[own])
                expected = read[at][sources.position[own]] @ transcoders.coders[at].encoder[:, sources.number[own]]
            assert float(edges.weights[row, source]) == pytest.approx(float(expected), abs=1e-9)
            checked += 1
    assert checked > 500


def dense(edges: Edges) -> tuple[Tensor, Tensor]:
    """The square matrix of circuit-tracer (target, source), logits last, and the weights of its logits."""
    count, logits = edges.weights.shape[1], len(edges.targets)
    matrix, weights = (
        torch.zeros(size, dtype=torch.float64) for size in ((count + logits, count + logits), count + logits)
    )
    for row, own in enumerate(edges.own.tolist()):
        matrix[count + row if own < 0 else own, :count] = edges.weights[row].double()
    weights[count:] = edges.probabilities
    return matrix, weights


def dense_influence(matrix: Tensor, weights: Tensor) -> Tensor:
    """w·((I − A)⁻¹ − I), with rows of A whose sizes sum to 1."""
    shares = matrix.abs() / matrix.abs().sum(1, keepdim=True).clamp(min=1e-10)
    identity = torch.eye(len(matrix), dtype=torch.float64)
    return weights @ (torch.linalg.inv(identity - shares) - identity)


@pytest.mark.parametrize("across", [False, True])
def test_pruning_and_scores_are_those_of_the_dense_matrix(across: bool) -> None:
    edges = circuit_of("llama, grouped", across).edges
    matrix, weights = dense(edges)
    n, sources = edges.sources.count, edges.sources
    influence = dense_influence(matrix, weights)

    def kept(values: Tensor, share: float) -> Tensor:
        ordered = values.flatten().sort(descending=True).values
        number = int((ordered.cumsum(0) / ordered.sum() < share).sum())
        return values >= ordered[number]

    shares = matrix.abs() / matrix.abs().sum(1, keepdim=True).clamp(min=1e-10)
    of_errors = shares[:, sources.errors].sum(1)
    flow = influence + weights
    tokens, errors = influence[sources.tokens].sum(), influence[sources.errors].sum()
    assert scores(edges) == pytest.approx(
        (float(tokens / (tokens + errors)), float(((1 - of_errors) * flow).sum() / flow.sum())), abs=1e-9
    )
    nodes = kept(influence, 0.7)
    nodes[sources.tokens.start :] = True
    pruned = matrix * nodes[:, None] * nodes
    flow = dense_influence(pruned, weights) + weights
    shares = pruned.abs() / pruned.abs().sum(1, keepdim=True).clamp(min=1e-10)
    links = kept(shares * flow[:, None], 0.9)
    while True:
        before = nodes.clone()
        nodes[: sources.tokens.start] &= links[:, : sources.tokens.start].any(0)
        nodes[: sources.n_features] &= links[: sources.n_features].any(1)
        links &= nodes[:, None] & nodes
        if torch.equal(nodes, before):
            break
    result = prune(edges, 0.7, 0.9)
    assert torch.equal(result.sources, nodes[:n])
    rows = [n + row if own < 0 else own for row, own in enumerate(edges.own.tolist())]
    assert torch.equal(result.edges, links[rows][:, :n])
    assert 5 < int(result.sources[: sources.n_features].sum()) < sources.n_features


def test_the_strongest_paths_are_the_largest_of_all_paths() -> None:
    edges = circuit_of("gpt2", False).edges
    pruned = prune(edges, 0.9, 0.95)
    rows = {own: row for row, own in enumerate(edges.own.tolist()) if own >= 0}

    def walk(row: int, value: float, path: tuple[int, ...]) -> list[tuple[float, tuple[int, ...]]]:
        ends = []
        for source in pruned.edges[row].nonzero().flatten().tolist():
            weight = value * float(edges.weights[row, source])
            if source >= edges.sources.n_features:
                ends.append((weight, (source, *path)))
            else:
                ends += walk(rows[source], weight / float(edges.values[rows[source]]), (source, *path))
        return ends

    every = sorted(walk(0, 1.0, ()), key=lambda entry: -abs(entry[0]))
    found = strongest_paths(edges, pruned, 12)
    assert [path for _, path in found] == [path for _, path in every[:12]]
    assert [weight for weight, _ in found] == pytest.approx([weight for weight, _ in every[:12]])
    assert len(every) > 50


def test_effects_are_the_sums_over_all_paths() -> None:
    edges = circuit_of("llama, grouped", False).edges
    matrix, _ = dense(edges)
    n, relative = edges.sources.count, matrix.clone()
    rows = [own for own in edges.own.tolist() if own >= 0]
    relative[rows] /= edges.values[edges.own >= 0, None]
    total = torch.linalg.inv(torch.eye(len(matrix), dtype=torch.float64) - relative)
    assert edges.effects == pytest.approx(total[n, :n], abs=1e-9)


@pytest.mark.parametrize("across", [False, True])
def test_a_feature_is_taken_out_of_the_model_itself(across: bool) -> None:
    """Against a plain hook on the modules of the feed-forwards."""
    model, circuit = of_kind("gpt2"), circuit_of("gpt2", across)
    transcoders, ids = circuit.transcoders, torch.tensor([model.encode(TEXT).ids])
    target = circuit.targets[0].number

    def logit(name: str = "") -> float:
        handles = []
        if name:
            node = circuit.node(name)
            for above, direction in enumerate(transcoders.directions(node.layer)[node.number]):

                def less(
                    module: Any, args: Any, result: Tensor, node: Any = node, direction: Tensor = direction
                ) -> Tensor:
                    result = result.clone()
                    result[:, node.position] -= node.activation * direction
                    return result

                module = model.transformer.get_submodule(f"blocks.{node.layer + above}.ffn.down")
                handles.append(module.register_forward_hook(less))
        with torch.no_grad():
            logits = model.transformer(ids)[0, -1]
        for handle in handles:
            handle.remove()
        return float(logits[target] - logits.mean())

    assert len(circuit.left_out) > 10
    for each in circuit.left_out[:10]:
        assert each.measured == pytest.approx(logit(each.node) - logit(), abs=1e-9)
        assert each.predicted == pytest.approx(-(circuit.node(each.node).effect or 0.0))


def test_the_file_has_the_members_of_circuit_tracer() -> None:
    """Those of circuit_tracer/frontend/graph_models.py: Metadata, QParams, Node and Link, with their types."""
    tiny = load("tiny")
    transcoders = random_set(tiny.config, across=False)
    transcoders = replace(transcoders, coders=tuple(in_float32(coder) for coder in transcoders.coders))
    circuit = tiny.feature_circuit("The cat sat on", transcoders, left_out=3)
    assert circuit.holds
    hold(circuit.to_dict())
    data = json.loads(json.dumps(circuit.to_dict()))
    metadata = {"slug": str, "scan": str, "transcoder_list": list, "prompt_tokens": list, "prompt": str}
    assert all(isinstance(data["metadata"][name], kind) for name, kind in metadata.items())
    params = {"pinnedIds": list, "supernodes": list, "linkType": str, "clickedId": str, "sg_pos": str}
    assert {name: type(value) for name, value in data["qParams"].items()} == params
    node = {"node_id": str, "feature": int, "layer": str, "ctx_idx": int, "feature_type": str, "token_prob": float,
            "is_target_logit": bool, "run_idx": int, "reverse_ctx_idx": int, "jsNodeId": str, "clerp": str}  # fmt: skip
    for each in data["nodes"]:
        assert all(type(each[name]) is kind for name, kind in node.items())
    ids = {each["node_id"]: each for each in data["nodes"]}
    assert len(ids) == len(data["nodes"])
    assert all(link["source"] in ids and link["target"] in ids for link in data["links"])
    by_type = {each["feature_type"]: each for each in data["nodes"]}
    assert set(by_type) == {"cross layer transcoder", "mlp reconstruction error", "embedding", "logit"}
    feature, logit = by_type["cross layer transcoder"], by_type["logit"]
    layer, number, position = map(int, feature["node_id"].split("_"))
    assert feature["feature"] == (layer + number) * (layer + number + 1) // 2 + number
    assert feature["jsNodeId"] == f"{layer}_{number}-0"
    assert feature["ctx_idx"] == position
    assert logit["layer"] == "5"
    assert by_type["embedding"]["layer"] == "E"
    assert sum(each["is_target_logit"] for each in data["nodes"]) == 1


def test_a_node_is_named_by_a_token_too() -> None:
    circuit = circuit_of("gpt2", False)
    node = next(each for each in circuit.nodes if each.kind == "feature" and each.position == 1)
    assert circuit.node(f"L{node.layer}F{node.number}@#14") is node
    assert circuit.into(node.name)
    with pytest.raises(AddressError, match="there is no node"):
        circuit.node("L0F99@0")


def test_features_of_tokens_that_the_tokenizer_adds_are_errors(tmp_path: Path) -> None:
    model = of_kind("gpt2")
    transcoders = random_set(model.config, across=False)
    attribution = Attribution(model.transformer, [3, 14, 15], [1, 2], transcoders)
    assert 0 not in attribution.sources.position.tolist()
    assert attribution.edges([1], torch.ones(1), None, ignore_progress).difference < 1e-12


def test_only_the_features_with_most_influence_are_traced() -> None:
    model = of_kind("gpt2")
    transcoders = random_set(model.config, across=False)
    few = feature_circuit(model, TEXT, transcoders, most=3, left_out=0)
    every = feature_circuit(model, TEXT, transcoders, most=None, left_out=0)
    assert few.traced == 9 < every.traced
    assert few.edges.difference < 1e-12
    last = [node.name for node in every.nodes if node.layer == 2 and node.kind == "feature"]
    assert [node.name for node in few.nodes if node.layer == 2 and node.kind == "feature"] != last


# Folders


@pytest.mark.parametrize("across", [False, True])
def test_a_set_is_written_as_circuit_tracer_caches_it(tmp_path: Path, across: bool) -> None:
    """Read by the rules of its loaders: names of tensors, their shapes, and pre-activations x·W_encᵀ + b_enc."""
    from safetensors.torch import load_file

    model = of_kind("gpt2")
    written = random_set(model.config, across=across)
    written = replace(written, coders=tuple(replace(coder, skip=None) for coder in written.coders))
    written.write_into(tmp_path, "a model")
    config = (tmp_path / "config.yaml").read_text()
    kind = "cross_layer_transcoder" if across else "transcoder_set"
    assert f'model_kind: "{kind}"' in config
    assert 'feature_input_hook: "mlp.hook_in"\nfeature_output_hook: "mlp.hook_out"' in config
    layers, x = model.config.n_layers, torch.randn(5, 24)
    outputs = [torch.zeros(5, 24) for _ in range(layers)]
    for n in range(layers):
        if across:
            tensors = load_file(tmp_path / f"W_enc_{n}.safetensors") | load_file(tmp_path / f"W_dec_{n}.safetensors")
            tensors = {name.removesuffix(f"_{n}"): tensor for name, tensor in tensors.items()}
            threshold, decoders = tensors["threshold"], tensors["W_dec"]
        else:
            tensors = load_file(tmp_path / f"layer_{n}.safetensors")
            threshold, decoders = tensors["activation_function.threshold"], tensors["W_dec"][:, None]
        pre = x @ tensors["W_enc"].T + tensors["b_enc"]
        active = pre * (pre > threshold)
        for above in range(decoders.shape[1]):
            outputs[n + above] += active @ decoders[:, above]
        outputs[n] += tensors["b_dec"]
    opened = open_transcoders(tmp_path)
    assert opened.crosses_layers == across
    assert [coder.writes for coder in opened.coders] == ["L0.ffn", "L1.ffn", "L2.ffn"]
    active = [coder.encode(x) for coder in opened.coders]
    for n, coder in enumerate(opened.coders):
        ours = coder.output_bias + sum(
            active[below] @ opened.directions(below)[:, n - below] for below in range(n + 1) if across or below == n
        )
        assert torch.allclose(ours, outputs[n], atol=1e-5)


def test_folders_that_hold_no_set_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no"):
        open_transcoders(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no transcoders"):
        open_transcoders(tmp_path)
    (tmp_path / "config.yaml").write_text("model_kind: other\nfeature_input_hook: a\nfeature_output_hook: b\n")
    with pytest.raises(CheckpointError, match="the kind 'other' is not known"):
        open_transcoders(tmp_path)
    (tmp_path / "config.yaml").write_text("model_kind: transcoder_set\n")
    with pytest.raises(CheckpointError, match="does not say feature_input_hook"):
        open_transcoders(tmp_path)


def test_what_is_no_transcoder_or_does_not_fit_is_refused() -> None:
    tiny = load("tiny")
    sae = TranscoderSet("sae", "SAELens", (tiny_sae(),))
    with pytest.raises(UsageError, match="is an autoencoder"):
        tiny.feature_circuit("The cat", sae)
    with pytest.raises(UsageError, match="vectors of 24 numbers"):
        tiny.feature_circuit("The cat", random_set(of_kind("gpt2").config, across=False))
    with pytest.raises(UsageError, match="nodes cannot keep 0"):
        tiny.feature_circuit("The cat", sae, node_share=0)


def tiny_sae() -> SparseCoder:
    eye = torch.eye(128)
    return SparseCoder("sae", "SAELens", "standard", eye, torch.zeros(128), eye, torch.zeros(128), "L1.ffn", "L1.ffn")


# In the terminal

TRANSCODERS = Path(__file__).parents[2] / "samples" / "transcoders"
PROMPT = "The cat sat on the mat. The dog"


def test_a_node_is_shown_with_its_edges(capsys: pytest.CaptureFixture[str]) -> None:
    circuit = load("tiny").feature_circuit(PROMPT, TRANSCODERS, left_out=0)
    node = max((each for each in circuit.nodes if each.kind == "feature"), key=lambda each: each.effect or 0)
    name = f"L{node.layer}F{node.number}"
    assert run(["circuit", PROMPT, "--features", str(TRANSCODERS), "--node", f"{name}@dog", "--left-out", "0"]) == 0
    shown = capsys.readouterr().out
    first = circuit.into(node.name)[0]
    assert f"{name}@8" in shown
    assert f"{first.weight:+.2f}" in shown
    assert "it adds to" in shown


def test_the_graph_is_right_about_what_it_holds_and_random_transcoders_are_not() -> None:
    """What the page says: where patterns and scales are held, effects are those of the graph."""
    tiny = load("tiny")
    for text in (PROMPT, "The cat lost the ball. The cat found the"):
        assert (tiny.feature_circuit(text, TRANSCODERS).rank_correlation_held or 0) > 0.8
    random = random_set(tiny.config, across=False)
    random = replace(random, coders=tuple(replace(in_float32(coder), skip=None) for coder in random.coders))
    assert (tiny.feature_circuit(PROMPT, random).rank_correlation_held or 0) < 0.6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([PROMPT, "other"], "--features explains the answer to one text"),
        ([PROMPT, "--method", "exact"], "--features takes no"),
        ([], "the text is missing"),
        ([PROMPT, "--node", "L9F1@0"], "there is no node L9F1@0"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["circuit", *words, "--features", str(TRANSCODERS)]) == 2
    assert message in capsys.readouterr().err


def test_a_node_needs_features_and_a_transcoder_needs_texts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["circuit", "a", "b", "--node", "x"]) == 2
    assert "--node is of a circuit over features" in capsys.readouterr().err
    assert run(["train-sae", "book.txt", "--out", str(tmp_path / "new")]) == 2
    assert "--at is missing" in capsys.readouterr().err
