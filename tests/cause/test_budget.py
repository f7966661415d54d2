"""Types of tensors within a size: what they cost beside whole runs of a model that was quantised by the library."""

import copy
import re

import gguf
import pytest
import torch
from architectures import SIZES, asked, config_of, lively
from whole_runs import TEXTS, apart

from tinytf.cause.budget import TYPES, Budget
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.sentences import percent

WIDE = {"d_model": 32, "d_ff": 64, "vocab_size": SIZES["vocab_size"]}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return lively(config_of("llama, grouped", **WIDE))


@pytest.fixture(scope="module")
def found(model: Transformer) -> Budget:
    return asked(model).budget(TEXTS, 14_000)


def stored(model: Transformer, types: dict[str, str]) -> tuple[Transformer, int]:
    """A copy with some parameters as the library writes and reads them, and the bytes of all of its tensors."""
    other, n_bytes = copy.deepcopy(model), 0
    with torch.no_grad():
        for path, parameter in other.named_parameters():
            kind = gguf.GGMLQuantizationType[types.get(path, "F32")]
            data = gguf.quants.quantize(parameter.numpy(), kind)
            n_bytes += data.nbytes
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(data, kind).copy()))
    return other, n_bytes


def test_each_tensor_costs_what_a_whole_run_with_it_costs(model: Transformer, found: Budget) -> None:
    assert {path for one in found.kept for path in one.paths} == {
        path for path, one in model.named_parameters() if one.dim() == 2
    }
    for one in found.kept:
        for kind in TYPES:
            true, _, _ = apart(model, stored(model, dict.fromkeys(one.paths, kind))[0])
            assert one.costs[kind] == pytest.approx(true, abs=1e-6), (one.name, kind)


def test_the_plan_is_within_the_budget_and_measured_as_a_whole(model: Transformer, found: Budget) -> None:
    plan = {path: one.kind for one in found.kept for path in one.paths}
    other, n_bytes = stored(model, plan)
    assert n_bytes == found.n_bytes <= found.limit
    assert found.measured.value == pytest.approx(apart(model, other)[0], abs=1e-6)
    assert found.predicted == pytest.approx(sum(one.costs[one.kind] for one in found.kept))
    for uniform in found.uniform:
        other, n_bytes = stored(model, dict.fromkeys(plan, uniform.kind))
        assert uniform.n_bytes == n_bytes
        assert uniform.kl.value == pytest.approx(apart(model, other)[0], abs=1e-6)
    largest = [uniform for uniform in found.uniform if uniform.n_bytes <= 14_000][-1]
    assert found.sentence == (
        f"The chosen types take all of 0.014 MB; they change the predictions "
        f"{percent(found.measured.value / largest.kl.value)} as much as {largest.kind} in every tensor would."
    )


def test_no_step_up_that_saves_anything_has_room_left(found: Budget) -> None:
    assert len({one.kind for one in found.kept}) > 1
    left = found.limit - found.n_bytes
    for one in found.kept:
        for kind in TYPES:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
            more = one.numbers // block * size - one.n_bytes
            assert not (0 < more <= left and one.costs[kind] < one.costs[one.kind])


def test_the_options_give_every_tensor_its_type_and_no_other(found: Budget) -> None:
    lines = [option.split("=") for option in found.options]
    patterns = [(re.compile(pattern.lower()), gguf.GGMLQuantizationType[kind.upper()].name) for pattern, kind in lines]
    planned = {one.name: [one.kind] for one in found.kept}
    depth, heads = 2, ("attn_q_norm", "attn_k_norm", "attn_norm", "ffn_norm", "attn_sinks", "ffn_gate_inp")
    others = [f"blk.{layer}.{name}.weight" for layer in range(depth) for name in heads]
    for name in (*planned, *others, "output_norm.weight", "token_embd_norm.weight"):
        # exactly one applies, so that it does not matter that older llama-quantize took the last and newer the first
        assert [kind for pattern, kind in patterns if pattern.search(name)] == planned.get(name, []), name
    assert len(found.options) < len(planned)  # layers of equal types share a line
    assert not any(character.isspace() for option in found.options for character in option)


def test_a_budget_that_nothing_fits_into_is_refused(model: Transformer) -> None:
    with pytest.raises(UsageError, match="in their smallest types, and the budget is 1,000"):
        asked(model).budget(TEXTS, 1000)


def test_an_architecture_without_a_gguf_name_has_addresses_and_no_options() -> None:
    found = asked(lively(config_of("norms of what is added", **WIDE))).budget("3 5 8", 10**6)
    assert "L1.W_Q" in {one.name for one in found.kept}
    assert found.options == ()
