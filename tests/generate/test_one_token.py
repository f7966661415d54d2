"""Kernels for one token are the modules, are compared at the first token, and give way where they are wrong."""

from typing import Any

import pytest
import torch
from architectures import KINDS, LLAMA, SIZES, config_of, encoding_of, furthest, lively, some_ids
from covering import along
from streaming import PROMPT, WARM, assert_same, steps_of, untied
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.generate import runner as runner_module
from tinytf.generate.beam import search
from tinytf.generate.decoder import Decoder, Kind, is_watched, without_kernel
from tinytf.generate.loop import Looking
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Transformer
from tinytf.steps import one_token as matrices
from tinytf.steps.one_token import Kernels, NumpyKernels
from tinytf.steps.operations import Activate, Add, Norm, Operation
from tinytf.steps.table import table_of
from tinytf.trace.record import record

ROPE = {**LLAMA, "rope_scaling": "llama3", "rope_factor": 8.0, "rope_original_context": 16}
YARN = {**ROPE, "rope_scaling": "yarn", "rope_low_frequency": 0.5, "rope_high_frequency": 2.0}
LONGROPE = {
    **ROPE,
    "rope_scaling": "longrope",
    "rope_short_factors": (1.0, 1.1, 1.3),
    "rope_long_factors": (1.5, 4.0, 9.0),
}
UNUSUAL: dict[str, dict[str, Any]] = {
    "norm_eps": {"norm_eps": 0.3},
    "window": {"window": 3},
    "position_offset": {"position_offset": 2},
    "n_token_types": {"n_token_types": 2},
    "embed_scale": {"embed_scale": 3.0},
    "rope_theta": {**LLAMA, "rope_theta": 7.0},
    "rope_factor": {**ROPE, "rope_factor": 3.0},
    "rope_low_frequency": {**ROPE, "rope_low_frequency": 0.2},
    "rope_high_frequency": {**ROPE, "rope_high_frequency": 9.0},
    "rope_original_context": {**ROPE, "rope_original_context": 30},
    "rope_attention_factor": {**YARN, "rope_attention_factor": 1.5},
    "rope_short_factors": LONGROPE,
    "rope_long_factors": {**LONGROPE, "rope_long_factors": (2.0, 2.5, 3.0)},
    "logit_scale": {"logit_scale": 0.3},
    "norm_gain": {"norm_bias": False},
    "shared_norm": {"residual": "parallel"},
}
"""Settings that the kinds do not have."""
SHOWN = [kind for kind in KINDS if config_of(kind).causal and config_of(kind).head.kind == "lm"]
DECODED = [
    kind
    for kind in SHOWN
    if not config_of(kind).experts
    and not table_of(config_of(kind)).carried
    and not config_of(kind).index_keys
    and not config_of(kind).extra_streams
    and {b.mixer.called for b in config_of(kind).blocks} == {"attention"}
]


@torch.no_grad()
@along({"name": [*DECODED, *UNUSUAL], "texts": [1, 2]}, ids=str)
def test_the_kernels_of_one_token_are_the_modules(name: str, texts: int) -> None:
    model = lively(config_of(name) if name in KINDS else ModelConfig.of(**{**SIZES, **UNUSUAL[name]}))
    ids = some_ids(model.config, texts, min(9, model.config.rope_switch or 9))
    decoder = Decoder(model, model.cache(batch=texts), texts)
    found = torch.stack([decoder(column) for column in ids.unbind(1)], dim=1)
    assert furthest(found, model(ids)) < 1e-5


@pytest.mark.parametrize("kind", [kind for kind in SHOWN if kind not in DECODED])
def test_a_model_that_chooses_experts_is_decoded_by_its_modules(kind: str) -> None:
    """Rounding that is another may send a token to another expert, and that is no wrong kernel."""
    assert not Decoder.fits(lively(config_of(kind)))


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("gpt2", ()), ("gemma 2, norms around each part and windows by layer", ("scores, capped",)),
     ("bloom, less by distance", ("scores, less by distance",)),
     ("ministral 3, queries scaled by their position", ("queries, scaled by position",))],
)  # fmt: skip
def test_what_has_no_kernel_is_said_by_its_title(kind: str, missing: tuple[str, ...]) -> None:
    model = untied(kind)
    assert without_kernel(model) == missing
    for how in (Kind(quantize=True), Kind(compile=True)) if missing else ():
        with pytest.raises(UsageError, match=f"compiled and int8 decoding have no kernel for: {missing[0]}"):
            steps_of(model, kind=how)


@pytest.mark.parametrize(
    "settings",
    [{}, {"samples": 3, "sampling": WARM}, {"chunk": 2}, {"on_overflow": "slide", "max_tokens": 40}],
    ids=str,
)
@pytest.mark.parametrize("operation", [Activate, Norm, Add])
def test_an_operation_without_a_kernel_is_run_by_its_module(
    monkeypatch: pytest.MonkeyPatch, operation: type[Operation], settings: dict[str, Any]
) -> None:
    model = untied("gpt2")
    usual = steps_of(model, **settings)
    monkeypatch.setattr(operation, "pointwise", False)
    monkeypatch.setattr(operation, "one_token", Operation.one_token)
    assert without_kernel(model)
    found = steps_of(model, **settings)
    assert_same(found, usual)
    assert {step.note for step in found} == {""}  # nothing went wrong


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize(
    "kind", ["gpt2", "bloom, less by distance", "gemma 2, norms around each part and windows by layer"]
)
def test_what_is_looked_at_is_the_weights_of_the_whole_text(kind: str, samples: int) -> None:
    settings: dict[str, Any] = {"looking": Looking(), "samples": samples, "sampling": WARM, "chunk": 3}
    model = untied(kind)
    found = steps_of(model, **settings)
    for step in found:
        own = [one.id for one in found if one.sample == step.sample and one.number < step.number]
        trace = record(model, encoding_of([*PROMPT, *own]))
        expected = torch.stack([trace[f"L{layer}.weights"][:, -1].mean(0) for layer in range(model.config.n_layers)])
        assert torch.allclose(step.attention, expected, atol=1e-5)
    assert not is_watched(model)


def unscaled(kernels: NumpyKernels, q: Any, *others: Any) -> Any:
    return NUMPY_ATTEND(kernels, 2 * q, *others)


def blind(kernels: Kernels, q: Tensor, k: Tensor, v: Tensor, stored: Any, *others: Any) -> Tensor:
    """Writes where it should not, too."""
    stored[0].zero_()
    return TORCH_ATTEND(kernels, q, k, v, stored, *others)


NUMPY_ATTEND, TORCH_ATTEND = NumpyKernels.attend, Kernels.attend
BROKEN = [
    (NumpyKernels, unscaled, torch.float32, {}),
    (NumpyKernels, unscaled, torch.float32, {"looking": Looking(), "chunk": 2}),
    (NumpyKernels, unscaled, torch.float32, {"on_overflow": "slide", "max_tokens": 40}),
    (Kernels, blind, torch.float32, {"samples": 3, "sampling": WARM}),
    (Kernels, blind, torch.bfloat16, {}),
    (Kernels, blind, torch.float64, {"samples": 2, "sampling": WARM}),
]


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "mistral, a window and stretched waves"])
@pytest.mark.parametrize(("kernels", "attend", "dtype", "settings"), BROKEN)
def test_a_kernel_that_is_wrong_gives_way_to_the_modules_and_the_stream_says_so(
    monkeypatch: pytest.MonkeyPatch, kind: str, kernels: type, attend: Any, dtype: torch.dtype, settings: dict[str, Any]
) -> None:
    model = untied(kind).to(dtype)
    expected = steps_of(model, use_cache=False, **{k: v for k, v in settings.items() if k not in ("looking", "chunk")})
    looked = steps_of(model, **settings)
    assert {step.note for step in looked} == {""}
    monkeypatch.setattr(kernels, "attend", attend)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(runner_module, "_difference", lambda *_: 0.0)
        wrong = [step.log_probability for step in steps_of(model, **settings)]
        assert wrong != pytest.approx([step.log_probability for step in expected], abs=1e-3)
    found = steps_of(model, **settings)
    near = 1e-5 if dtype is not torch.bfloat16 else 0.1
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.id, ours.dropped, ours.ended) == (theirs.id, theirs.dropped, theirs.ended)
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=near)
    samples = settings.get("samples", 1)
    assert "fast decoding had a relative error of" in found[-1].note
    assert "\n" not in found[-1].note
    assert [bool(step.note) for step in found] == [
        place >= samples or "looking" in settings for place in range(len(found))
    ]
    if "looking" in settings:
        for ours, theirs in zip(found, looked, strict=True):
            assert torch.allclose(ours.attention, theirs.attention, atol=1e-5)


def test_kernels_that_give_no_numbers_give_way_where_the_model_itself_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    model = untied("gpt2")
    monkeypatch.setattr(NumpyKernels, "attend", lambda kernels, q, *_: q * float("nan"))
    found = steps_of(model)
    assert_same(found, steps_of(model, use_cache=False))
    assert "a relative error of nan" in found[-1].note


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped"])
def test_int8_weights_are_compared_within_their_own_tolerance(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model = untied(kind)
    assert {step.note for step in steps_of(model, kind=Kind(quantize=True))} == {""}
    genuine = matrices.quantize

    def coarse(weight: Tensor) -> tuple[Tensor, Tensor]:
        numbers, scale = genuine(weight)
        return numbers, scale * 2

    monkeypatch.setattr(matrices, "quantize", coarse)
    found = steps_of(model, kind=Kind(quantize=True))
    assert_same(found, steps_of(model, use_cache=False))
    assert "fast decoding had a relative error of" in found[-1].note


def test_beams_give_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = untied("llama, grouped")
    expected = list(search(model, PROMPT, beams=3, max_tokens=6))
    assert {step.note for step in expected} == {""}
    monkeypatch.setattr(Kernels, "attend", blind)
    found = list(search(model, PROMPT, beams=3, max_tokens=6))
    assert [one.ids for one in found[-1].finished] == [one.ids for one in expected[-1].finished]
    assert [bool(step.note) for step in found] == [False] + [True] * 5


def test_one_token_goes_both_ways_and_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    model, genuine = untied("gpt2"), Transformer.hidden

    def counted(model: Transformer, ids: Tensor, **settings: Any) -> Tensor:
        lengths.append(ids.shape[1])
        return genuine(model, ids, **settings)

    monkeypatch.setattr(Transformer, "hidden", counted)
    steps_of(model)
    assert lengths == [len(PROMPT), 1]
    for settings, expected in (({"max_tokens": 1}, [4]), ({"kind": Kind(quantize=True)}, [4, 1])):
        lengths.clear()
        steps_of(model, **settings)
        assert lengths == expected
    runner = Runner(model, PROMPT, model.cache(), compare=False)
    lengths.clear()
    runner.first()
    runner.go_on([0], [1])
    assert lengths == [4]


def test_a_logit_that_can_never_come_is_no_difference() -> None:
    found, expected = torch.tensor([[1.0, -torch.inf, 50.0]]), torch.tensor([[1.5, -torch.inf, 50.0]])
    assert runner_module._difference(found, expected) == pytest.approx(0.01)
    assert runner_module._difference(found[:, :2], expected[:, :2]) == pytest.approx(0.5 / 1.5)
    assert runner_module._difference(torch.tensor([[0.1, torch.inf]]), torch.tensor([[0.0, 0.0]])) == torch.inf
    assert not runner_module._difference(torch.tensor([[torch.nan, 0.0]]), torch.tensor([[0.0, 0.0]])) <= 1e9
