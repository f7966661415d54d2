"""Module paths of transformers are named: what a path means here has the numbers of what that module gives there.

Every module of every family is watched, also those without parameters of their own, whose meaning no table says.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import encoding_of
from reference import FAMILIES, pair
from torch import Tensor, nn

from tinytf.compare.dumps.dumped import DumpSide
from tinytf.compare.dumps.read import Dump
from tinytf.parts.row import Step
from tinytf.trace.record import record

IDS = [3, 14, 15, 9, 2, 6, 5]


def given_by_modules(model: nn.Module) -> dict[str, Tensor]:
    """The first tensor that each module gives, the first time that it is called."""
    kept: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():

        def keep(module: nn.Module, given: Any, result: Any, name: str = name) -> None:
            first = next(iter(result.values())) if isinstance(result, dict) else result
            if isinstance(first, tuple | list):  # Llama 4's router gives its weights before its own numbers
                first = first[type(module).__name__ == "Llama4Router"]
            if isinstance(first, Tensor) and first.is_floating_point():
                kept.setdefault(name, first.clone())

        if name:
            handles.append(module.register_forward_hook(keep))
    model(input_ids=torch.tensor([IDS]))
    for handle in handles:
        handle.remove()
    return kept


VALUES_UNNAMED = ("deberta", "granitemoehybrid", "deepseek_v4")
"""Models without a module that gives their values: a bias is added outside, or it gives other steps as well."""


@pytest.mark.share(8)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_module_path_means_the_step_that_has_its_numbers(family: str) -> None:
    models = pair(family)
    kind, config = models.theirs.config.model_type, models.ours.config
    if kind in ("nomic_bert", "jina_embeddings_v3", "gte"):
        pytest.skip("its modules have other names than it is stored under")
    if kind == "falcon_h1" and models.theirs.config.key_multiplier != 1:
        pytest.skip("its multipliers are part of our weights")
    kept, trace = given_by_modules(models.theirs), record(models.ours, encoding_of(IDS))
    dump = Dump(Path("x.npz"), {name: tuple(one.shape) for name, one in kept.items()}, kept.__getitem__)
    dumped = DumpSide.of(dump, config, None, encoding_of(IDS), table=models.table)

    def beside(step: Step, layer: int | None, heads: tuple[int, ...] | None) -> Tensor:
        return trace.vocabulary(step.name, range(len(IDS))) if step.is_vocabulary else trace.step(step.name, layer)

    named = {}
    for (name, layer), meanings in dumped.named.at.items():
        found = dumped.step(name, layer, None, beside)
        shapes = [kept[stored].shape for stored, _ in meanings]
        if found is None and any(len(IDS) not in shape or config.d_embed for shape in shapes):
            continue  # of the first token alone, or as wide as the embeddings
        if kind == "gpt_neox_japanese" and (name, layer) == ("attn", config.n_layers - 1):
            continue  # its bias is added outside of the module
        if name == "pooled.dense":
            continue  # theirs projects each token
        if found is None and config.padding_rows and name == "logits":
            continue  # theirs has rows for no token
        if found is None and config.encoder is not None and name == "logits":
            continue  # the module of the decoder, whose name ends as that of our unembedding, but not its width
        if found is None and all(not one.certain for _, one in meanings):
            continue  # it is another step of that name
        assert found is not None, (name, layer, meanings, shapes)
        expected = beside(trace.steps.at(name, layer), layer, None)
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4, msg=f"{name} {layer} {meanings}")
        named[name] = layer
    outside = (
        kind in ("granitemoeshared", "granitemoehybrid", "granitemoe_swa", "gemma4_text") and config.experts
    )  # it adds outside of a module
    added = "ffn.mixed" if outside else "ffn_gain" if config.ffn_scale else trace.steps.added[-1].name
    values = {"v"} - ({"v"} if kind in VALUES_UNNAMED else set())
    attention = {"attn", *values} if kind != "xlnet" else set()  # one module holds its matrices, and norms the sum
    assert {trace.steps.output, added, *attention} <= set(named)
