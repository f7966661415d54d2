"""Ablation and patching agree with TransformerLens 4 on the same weights within 1e-4, one hooked forward pass each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import asked, encoding_of
from peer_models import IDS, PEERS, peers
from torch import Tensor

from tinytf.cause.interventions import reference_of
from tinytf.trace.record import record

WITHIN = 1e-4
CORRUPT = (11, 14, 15, 9, 2, 6, 5, 3, 8, 8)
TARGET, ANSWER, VERSUS = 7, 21, 4
families = pytest.mark.parametrize("family", PEERS)

Hook = Callable[[Tensor], None]
"""Changes a clone of what they have at a hook, (B, T, C), or (B, T, H, D) at ``hook_z``."""


def hooked(theirs: Any, ids: tuple[int, ...], name: str, change: Hook, n_heads: int = 0) -> Tensor:
    """Their logits (V,) at the last position, with a change at one hook."""

    def hook(tensor: Tensor, hook: object) -> Tensor:
        tensor = tensor.clone()
        change(tensor if not n_heads or tensor.dim() == 4 else tensor.unflatten(-1, (n_heads, -1)))
        return tensor

    with torch.no_grad():
        return theirs.run_with_hooks(torch.tensor([ids]), fwd_hooks=[(name, hook)])[0, -1].double()


@families
def test_every_ablated_head_and_feed_forward_changes_the_prediction_alike(family: str) -> None:
    both = peers(family)
    config, trace = both.ours.config, both.trace()
    plain = both.theirs(torch.tensor([IDS]))[0, -1].double().log_softmax(-1).detach()

    def zero(tensor: Tensor, head: int | None = None) -> None:
        (tensor if head is None else tensor[:, :, head]).zero_()

    heads = asked(both.ours).ablate_sweep(trace, "heads", target=TARGET)
    parts = asked(both.ours).ablate_sweep(trace, "ffn", target=TARGET)
    expected = []
    for layer in range(config.n_layers):
        for head in range(config.n_heads):

            def change(tensor: Tensor, head: int = head) -> None:
                zero(tensor, head)

            expected.append(hooked(both.theirs, IDS, f"blocks.{layer}.attn.hook_z", change, config.n_heads))
    expected += [hooked(both.theirs, IDS, f"blocks.{layer}.hook_mlp_out", zero) for layer in range(config.n_layers)]
    for effect, logits in zip((*heads.effects, *parts.effects), expected, strict=True):
        after = logits.log_softmax(-1)
        assert effect.after == pytest.approx(float(after[TARGET]), abs=WITHIN)
        assert effect.kl == pytest.approx(float((plain.exp() * (plain - after)).sum()), abs=WITHIN)
        assert effect.best == int(after.argmax())


@families
def test_a_mean_ablated_layer_changes_the_loss_alike(family: str) -> None:
    both = peers(family)
    reference = reference_of("another text", ["a"], lambda _: encoding_of(CORRUPT))
    found = asked(both.ours).ablate(both.trace(), ["L1.attn"], how="mean", reference=reference)
    _, cache = both.theirs.run_with_cache(torch.tensor([CORRUPT]))
    mean = cache["blocks.1.hook_attn_out"].mean(dim=1)  # (1, C)

    def put(tensor: Tensor, hook: object) -> Tensor:
        return mean[:, None].expand_as(tensor)

    with torch.no_grad():
        logits = both.theirs.run_with_hooks(torch.tensor([IDS]), fwd_hooks=[("blocks.1.hook_attn_out", put)])[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(IDS[1:]))
    assert found.loss_after == pytest.approx(float(loss), abs=WITHIN)


@families
@pytest.mark.parametrize(
    ("what", "hook"),
    [("residual", "hook_resid_pre"), ("attn", "hook_attn_out"), ("ffn", "hook_mlp_out"), ("heads", "attn.hook_z")],
)
def test_every_patch_brings_back_as_much(family: str, what: str, hook: str) -> None:
    both = peers(family)
    config = both.ours.config
    found = asked(both.ours).patch_sweep(
        both.trace(), record(both.ours, encoding_of(CORRUPT)), what, answer=ANSWER, versus=VERSUS
    )  # fmt: skip
    with torch.no_grad():
        _, cache = both.theirs.run_with_cache(torch.tensor([IDS]))
    n_heads = config.n_heads if what == "heads" else 0
    for layer in range(config.n_layers):
        name = f"blocks.{layer}.{hook}"
        clean = cache[name]
        if n_heads and clean.dim() == 3:
            clean = clean.unflatten(-1, (n_heads, -1))
        for column in range(found.values.shape[1]):

            def change(tensor: Tensor, clean: Tensor = clean, column: int = column) -> None:
                where = (slice(None), slice(None), column) if n_heads else (slice(None), column)
                tensor[where] = clean[where]

            logits = hooked(both.theirs, CORRUPT, name, change, n_heads)
            difference = float(logits[ANSWER] - logits[VERSUS])
            assert float(found.values[layer, column]) == pytest.approx(difference, abs=WITHIN), (layer, column)


@families
@pytest.mark.parametrize(
    ("address", "hook"),
    [("q", "attn.hook_q"), ("k", "attn.hook_k"), ("v", "attn.hook_v"), ("weights", "attn.hook_pattern")],
)
def test_every_site_inside_attention_brings_back_as_much(family: str, address: str, hook: str) -> None:
    both = peers(family)
    config, corrupt = both.ours.config, record(both.ours, encoding_of(CORRUPT))
    with torch.no_grad():
        _, cache = both.theirs.run_with_cache(torch.tensor([IDS]))
    for layer in range(config.n_layers):
        clean, head = cache[f"blocks.{layer}.{hook}"], 0
        of_heads = (
            clean if address == "weights" else clean if clean.dim() == 4 else clean.unflatten(-1, (-1, config.d_head))
        )

        def change(tensor: Tensor, of_heads: Tensor = of_heads, head: int = head) -> None:
            theirs = tensor if tensor.dim() == 4 else tensor.unflatten(-1, (-1, config.d_head))
            where = (slice(None), head) if address == "weights" else (slice(None), slice(None), head)
            theirs[where] = of_heads[where]

        logits = hooked(both.theirs, CORRUPT, f"blocks.{layer}.{hook}", change)
        found = asked(both.ours).patch(both.trace(), corrupt, f"L{layer}H0.{address}", answer=ANSWER, versus=VERSUS)
        assert found.value == pytest.approx(float(logits[ANSWER] - logits[VERSUS]), abs=WITHIN), layer


@families
def test_every_unit_brings_back_as_much(family: str) -> None:
    both = peers(family)
    corrupt = record(both.ours, encoding_of(CORRUPT))
    with torch.no_grad():
        _, cache = both.theirs.run_with_cache(torch.tensor([IDS]))
    for layer, unit in ((0, 3), (1, 11)):
        clean = cache[f"blocks.{layer}.mlp.hook_post"]

        def change(tensor: Tensor, clean: Tensor = clean, unit: int = unit) -> None:
            tensor[..., unit] = clean[..., unit]

        logits = hooked(both.theirs, CORRUPT, f"blocks.{layer}.mlp.hook_post", change)
        found = asked(both.ours).patch(both.trace(), corrupt, f"L{layer}.{unit}", answer=ANSWER, versus=VERSUS)
        assert found.value == pytest.approx(float(logits[ANSWER] - logits[VERSUS]), abs=WITHIN), (layer, unit)
