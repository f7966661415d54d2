"""Path patching beside explicit formulas on transformers' own model, and beside patches that a path must equal."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids
from torch import Tensor

import tinytf
from tinytf.cause.interventions import Intervention, hook_points, intervening
from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

CLEAN, CORRUPT = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"
WITH_HEAD = [kind for kind in KINDS if config_of(kind).head.kind != "none"]
kinds = pytest.mark.parametrize("kind", WITH_HEAD)
LENGTH, MASK, WIDTH = 9, 5, 32


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


class Theirs:
    """A model of transformers in float64, with what every layer reads, gives and adds for a text."""

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        self.model, self.ids = model, torch.tensor([ids])
        self.inputs, self.heads, self.attn, self.ffn, handles = [], [], [], [], []
        for layer in model.model.layers:
            handles += [
                layer.register_forward_pre_hook(lambda _, args: self.inputs.append(args[0])),
                layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: self.heads.append(args[0])),
                layer.self_attn.register_forward_hook(lambda _, args, result: self.attn.append(result[0])),
                layer.mlp.register_forward_hook(lambda _, args, result: self.ffn.append(result)),
            ]
        self.logits = model(input_ids=self.ids).logits[0, -1]
        for handle in handles:
            handle.remove()

    def with_output(self, module: Any, columns: slice, value: Tensor) -> Tensor:
        """The logits of the text with some columns of what a module gives replaced."""

        def put(_: Any, args: Any, result: Tensor) -> Tensor:
            result = result.clone()
            result[..., columns] = value[..., columns]
            return result

        handle = module.register_forward_hook(put)
        logits = self.model(input_ids=self.ids).logits[0, -1]
        handle.remove()
        return logits


@pytest.fixture(scope="module")
def both(model: tinytf.Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Theirs, Theirs]:
    """The clean and the corrupt run of the same weights in transformers."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("exported") / "tiny"
    model.export(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval().requires_grad_(False)
    clean, corrupt = (Theirs(theirs, model.encode(text).ids) for text in (CLEAN, CORRUPT))
    return clean, corrupt


def sent(clean: Theirs, corrupt: Theirs, layer: int, head: int | None) -> Tensor:
    """What the stream gains when a head (None: the feed-forward) takes its clean value."""
    if head is None:
        return clean.ffn[layer] - corrupt.ffn[layer]
    columns = slice(head * WIDTH, (head + 1) * WIDTH)
    change = (clean.heads[layer] - corrupt.heads[layer])[..., columns]
    return change @ clean.model.model.layers[layer].self_attn.o_proj.weight[:, columns].T


@pytest.mark.parametrize("sender", [(0, 2), (0, None), (1, 0)])
@pytest.mark.parametrize("receiver", ["L3H0.q", "L2H1.k", "L2H3.v", "L2.ffn", "logits"])
def test_a_path_is_the_formula_along_the_stream(
    model: tinytf.Model, both: tuple[Theirs, Theirs], sender: tuple[int, int | None], receiver: str
) -> None:
    clean, corrupt = both
    name = f"L{sender[0]}.ffn" if sender[1] is None else f"L{sender[0]}H{sender[1]}"
    found = model.patch_path(CLEAN, CORRUPT, name, receiver, answer="ball", versus="hat")
    change, whole = sent(clean, corrupt, *sender), corrupt.model
    if receiver == "logits":
        last = corrupt.inputs[-1] + corrupt.attn[-1] + corrupt.ffn[-1] + change
        logits = whole.lm_head(whole.model.norm(last))[0, -1]
    else:
        layer = whole.model.layers[int(receiver[1])]
        stream = corrupt.inputs[int(receiver[1])] + change
        if receiver.endswith("ffn"):
            middle = stream + corrupt.attn[int(receiver[1])]
            value = layer.mlp(layer.post_attention_layernorm(middle))
            logits = corrupt.with_output(layer.mlp, slice(None), value)
        else:
            module = getattr(layer.self_attn, f"{receiver[-1]}_proj")
            head = int(receiver[3])
            value = module(layer.input_layernorm(stream))
            logits = corrupt.with_output(module, slice(head * WIDTH, (head + 1) * WIDTH), value)
    expected = float(logits[found.contrast.metric.answer[0]] - logits[found.contrast.metric.versus[0]])
    assert found.value == pytest.approx(expected, abs=5e-5)
    assert all(check.holds for check in found.checks)


def test_feed_forwards_recompute_on_the_way_if_asked(model: tinytf.Model, both: tuple[Theirs, Theirs]) -> None:
    clean, corrupt = both
    tokens = {"answer": "ball", "versus": "hat"}
    found = model.patch_path(CLEAN, CORRUPT, "L1H0", "logits", recompute_ffn=True, **tokens)
    stream = corrupt.inputs[1] + sent(clean, corrupt, 1, 0)
    for layer, attn in list(zip(corrupt.model.model.layers, corrupt.attn, strict=True))[1:]:
        stream = stream + attn
        stream = stream + layer.mlp(layer.post_attention_layernorm(stream))
    logits = corrupt.model.lm_head(corrupt.model.model.norm(stream))[0, -1]
    expected = float(logits[found.contrast.metric.answer[0]] - logits[found.contrast.metric.versus[0]])
    assert found.value == pytest.approx(expected, abs=5e-5)
    held = model.patch_path(CLEAN, CORRUPT, "L1H0", "logits", **tokens)
    assert abs(held.value - found.value) > 0.1


def test_a_sweep_is_each_path_alone(model: tinytf.Model) -> None:
    tokens = {"answer": "ball", "versus": "hat"}
    for fixed, ends in (
        ({"receivers": "L2H1.v"}, ("L0.in", "L0H2", "L1H0", "L1.ffn")),
        ({"receivers": "logits"}, ("L1H0", "L3.ffn")),
        ({"senders": "L0.ffn"}, ("L1H0.v", "L1H3.q", "L3.ffn", "logits")),
    ):
        found = model.patch_paths(CLEAN, CORRUPT, **fixed, **tokens)
        by_name = {end.name: end for end in found.ends}
        for end in ends:
            senders, receivers = fixed.get("senders", end), fixed.get("receivers", end)
            alone = model.patch_path(CLEAN, CORRUPT, senders, receivers, **tokens)
            assert by_name[end].value == pytest.approx(alone.value, abs=1e-4), (fixed, end)
        strongest = max(found.ends, key=lambda end: abs(end.recovered))
        assert strongest.name in found.sentence.replace("the logits", "logits")
        assert all(check.holds for check in found.checks)


def test_the_tokens_of_an_address_limit_a_path(model: tinytf.Model) -> None:
    whole = model.patch_path(CLEAN, CORRUPT, "embeddings", "L1H0.v", positions=[4])
    sent = model.patch_path(CLEAN, CORRUPT, "L0.in[hat]", "L1H0.v")
    assert sent.value == pytest.approx(whole.value, abs=1e-5)
    # The embeddings differ at the hat alone, so that only its value changes.
    received = model.patch_path(CLEAN, CORRUPT, "embeddings", "L1H0.v[hat]")
    assert received.value == pytest.approx(whole.value, abs=1e-5)
    assert model.patch_path(CLEAN, CORRUPT, "embeddings", "L1H0.v[cat#2]").recovered == pytest.approx(0.0, abs=1e-5)


def test_the_last_part_has_a_path_to_the_logits_alone(model: tinytf.Model) -> None:
    found = model.patch_paths(CLEAN, CORRUPT, senders="L3.ffn")
    assert [end.name for end in found.ends] == ["logits"]
    assert found.ends[0].value == pytest.approx(model.patch_path(CLEAN, CORRUPT, "L3.ffn").value, abs=1e-5)
    assert found.sentence.startswith("The only direct path, from L3.ffn to the logits, brings back ")


def traced(model: Transformer, seed: int) -> Trace:
    """A trace of random tokens; of an encoder with the mask at 5."""
    ids = some_ids(model.config, 1, LENGTH, seed)[0].tolist()
    if not model.config.causal:
        ids = [token if token != 30 else 0 for token in ids]
        ids[MASK] = 30
    return record(model, encoding_of(ids), None if model.config.causal else 30)


@kinds
def test_paths_without_anything_in_between_are_patches(kind: str) -> None:
    model = lively(config_of(kind))
    ours, clean, corrupt = asked(model), traced(model, 5), traced(model, 6)
    tokens = {"answer": 3, "versus": 4}
    if model.config.extra_streams or clean.steps.carried:
        with pytest.raises(UsageError, match="not the only path"):
            ours.patch_path(clean, corrupt, "embeddings", "logits", **tokens)
        return
    last = model.config.n_layers - 1
    steps = [step.name for step in clean.steps.added_in(last)]
    for sender, receiver, patched in (
        ("embeddings", "L0H1", "L0H1"),  # which read nothing but the embeddings
        (f"L{last}.{steps[-1]}", "logits", f"L{last}.{steps[-1]}"),  # above which nothing reads
    ):
        try:
            expected = ours.patch(clean, corrupt, [patched], **tokens)
        except AddressError:  # a layer without heads
            continue
        found = ours.patch_path(clean, corrupt, sender, receiver, **tokens)
        assert found.value == pytest.approx(expected.value, abs=2e-5), sender
        assert all(check.holds for check in found.checks)


@pytest.mark.parametrize(
    ("sender", "receiver", "said"),
    [
        ("L2H1", "L1H0.q", "no path leads from L2H1 to L1H0.q"),
        ("L1H1", "L1H0.q", "no path leads"),
        ("L1.ffn", "L1.ffn", "no path leads"),
        ((), "logits", "no sender"),
        ("L0H1", ("logits", "L1.ffn"), "name logits alone"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(model: tinytf.Model, sender: str, receiver: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        model.patch_path(CLEAN, CORRUPT, sender, receiver)
    assert said in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "gemma 2, norms around each part and windows by layer"])
def test_a_head_reaches_another_by_what_it_changes_in_the_stream_alone(kind: str) -> None:
    model = lively(config_of(kind))
    ours, clean, corrupt = asked(model), traced(model, 5), traced(model, 6)
    found = ours.patch_path(clean, corrupt, "L0H1", "L1H0.q", answer=3, versus=4)
    (sender,) = hook_points("L0H1", clean.steps)
    with intervening(model, [Intervention(sender, sender.value(clean))]):
        middle = record(model, corrupt.encoding)["L0.mid"]
    stream = corrupt["L1.in"] + middle - corrupt["L0.mid"]
    with ours.edited({"L1.in": stream}):
        query = record(model, corrupt.encoding)["L1H0.q"]
    with ours.edited({"L1H0.q": query}):
        logits = record(model, corrupt.encoding).logits_at(LENGTH - 1)
    assert found.value == pytest.approx(float(logits[3] - logits[4]), abs=2e-5)
    assert abs(found.value - found.contrast.corrupt) > 1e-5
