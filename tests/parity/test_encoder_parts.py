"""What the encoder's parts add to a logit: they sum to what the source adds, and each is autograd's along its path."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from architectures import KINDS, SOURCE, config_of, lively
from reference import TWO_STACKS, saved
from torch import Tensor, nn

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.loading import Model
from tinytf.look.attribute import Attribution
from tinytf.model.transformer import Source, Transformer
from tinytf.text.ids import IdTokenizer

KINDS_OF_TWO = [kind for kind, settings in KINDS.items() if "encoder" in settings]
TEXT, TARGET = " ".join(map(str, SOURCE)), "3 14 15 9 2 6"


def opened(name: str) -> Model:
    """A model of a kind or of a family, in float64, that has read SOURCE."""
    transformer = lively(config_of(name)) if name in KINDS else read_directory(saved(name)).load().transformer
    transformer = transformer.double().requires_grad_(False)
    sizes = transformer.config.vocab_size, transformer.config.encoder.vocab_size
    return Model("test", transformer, IdTokenizer(*sizes), "weights of a test").reading(TEXT)


@pytest.mark.every
@pytest.mark.parametrize("name", [*KINDS_OF_TWO, *TWO_STACKS])
def test_the_encoders_parts_sum_to_what_each_token_of_the_source_adds(name: str) -> None:
    model = opened(name)
    for position in ("0", "-1"):
        for versus in (None, 21):
            found = model.attribute(TARGET, token=7, versus=versus, position=position)
            by_token = [math.fsum(part.source[at] for part in found.encoder_parts) for at in range(len(SOURCE))]
            assert by_token == pytest.approx(found.of_source(), abs=1e-12)
            across = math.fsum(part.value for part in found.parts if part.kind == "cross-attention")
            assert math.fsum(part.value for part in found.encoder_parts) == pytest.approx(across, abs=1e-12)
            assert abs(across) > 1e-4
            assert found.holds
            names = [part.name for part in found.encoder_parts]
            assert len({*names}) == len(names)
            heads = {(part.layer, part.head) for part in found.encoder_parts if part.kind == "head"}
            read = model.config.encoder
            assert heads == {(n, head) for n in range(read.n_layers) for head in range(read.at(n).n_heads)}


def _frozen(norm: Any, args: Any, result: Tensor) -> Tensor:
    """What a norm gives, its scale a constant for autograd."""
    (x,) = args[:1]
    x = x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x
    scale = (x.detach().square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    bias = getattr(norm, "bias", None)
    own = x * scale * norm.weight + (0.0 if bias is None else bias)
    torch.testing.assert_close(own, result, rtol=1e-9, atol=1e-9)
    return own


@contextmanager
def held(model: Transformer) -> Iterator[dict[str, Tensor]]:
    """A model in which patterns, scales and what heads and feed-forwards compute are constants, by plain hooks.

    What the heads and feed-forwards of the encoder put before their last matrix are leaves, by their addresses.
    """
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, x: Tensor) -> Tensor:
        return leaves.setdefault(name, x.detach().clone().requires_grad_())

    with ExitStack() as stack:

        def hook(module: nn.Module, function: Any) -> None:
            stack.callback(module.register_forward_hook(function).remove)

        for of, encoder in ((model.encoder, True), (model, False)):
            for path, module in of.named_modules():
                if hasattr(module, "eps") and not path.startswith("encoder."):
                    hook(module, _frozen)
            if encoder:
                for name in ("tokens", "positions", "types"):
                    if hasattr(of.embed, name):
                        own = f"enc.embed.{name}"
                        hook(getattr(of.embed, name), lambda _, args, x, own=own: leaf(own, x))
            for n, block in enumerate(of.blocks):
                keep = leaf if encoder else lambda name, x: x.detach()
                hook(block.head_out, lambda _, args, x, n=n, keep=keep: keep(f"enc.L{n}", x))
                hook(block.ffn.act, lambda _, args, x, n=n, keep=keep: keep(f"enc.L{n}.ffn", x))
                if not encoder:
                    hook(block.cross.weights, lambda _, args, x: x.detach())
        yield leaves


@pytest.mark.every
@pytest.mark.parametrize("name", [*KINDS_OF_TWO, "t5", "bart", "mbart", "pegasus", "marian", "m2m-100", "umt5"])
def test_each_part_is_its_vector_times_autograds_gradient_with_patterns_and_norms_held(name: str) -> None:
    model, position, token = opened(name), 4, 11
    found: Attribution = model.attribute(TARGET, token=token, position=str(position))
    transformer: Any = model.transformer
    biases = {path: p.requires_grad_() for path, p in transformer.named_parameters() if path.endswith("bias")}
    logits: list[Tensor] = []
    taken = transformer.head.decoder.register_forward_hook(lambda module, args, result: logits.append(result))
    with held(transformer) as leaves, torch.enable_grad():
        states = transformer.encoder.hidden(torch.tensor([SOURCE]))
        ids = torch.tensor([model.encode(TARGET).ids])
        transformer.unembed(transformer.hidden(ids, source=Source(states)))
        logits[0][0, position, token].backward()
    taken.remove()
    expected: dict[str, float] = {}
    for address, one in leaves.items():
        along = (one.grad * one).detach()
        if ".ffn" in address or ".embed" in address:
            expected[address] = float(along.sum())
            continue
        for head, value in enumerate(along[0].sum((-2, -1)).tolist()):  # (H, S, D)
            expected[f"{address}H{head}"] = value
    for path, bias in biases.items():
        if bias.grad is not None:
            expected[path] = float((bias.grad * bias).sum().detach())
    told = {part.name: part.value for part in found.encoder_parts}
    compared = {name: value for name, value in told.items() if name in expected}
    assert compared == pytest.approx({name: expected[name] for name in compared}, abs=1e-12)
    for n in range(transformer.config.n_layers):
        if (own := expected.get(f"blocks.{n}.cross.v.bias")) is not None:
            assert told[f"L{n}.cross.v bias"] == pytest.approx(own, abs=1e-12)
    if (own := expected.get("source_projection.bias")) is not None:
        assert told["source.projected bias"] == pytest.approx(own, abs=1e-12)
    others = sum(value for name, value in told.items() if name not in compared and name.startswith("enc."))
    own_biases = sum(value for path, value in expected.items() if path.startswith("encoder."))
    assert others == pytest.approx(own_biases, abs=1e-12)
    assert len(compared) >= 3 + transformer.encoder.config.n_layers


def test_a_replaced_head_of_the_encoder_adds_nothing_and_the_rest_still_sums() -> None:
    model = opened(KINDS_OF_TWO[1])
    changed = model.without("enc.L0H1")
    found = changed.attribute(TARGET, token=7)
    torch.testing.assert_close(changed.trace(TARGET)["source"], changed.trace(TARGET).source.last_hidden)
    told = {part.name: part.value for part in found.encoder_parts}
    assert told["enc.L0H1"] == 0.0
    assert found.holds
    assert found.of_source() != model.attribute(TARGET, token=7).of_source()


def test_given_states_have_no_parts() -> None:
    model = opened(KINDS_OF_TWO[0])
    found = model.reading(model.transformer.reads.states[0]).attribute(TARGET, token=7)
    assert found.encoder_parts == ()
    assert found.holds
    assert "encoder_difference" not in found.to_dict()["check"]
