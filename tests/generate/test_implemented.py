"""The fast decoder takes only what it implements, is checked at its first token, and gives way where it is wrong."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from architectures import LLAMA, SIZES, config_of, furthest, lively, some_ids
from streaming import PROMPT, WARM, assert_same, steps_of, untied
from torch import Tensor

from tinytf.config import CHOICES, FIELDS, ModelConfig
from tinytf.errors import UsageError
from tinytf.fields import Field
from tinytf.generate import matrices
from tinytf.generate import runner as runner_module
from tinytf.generate.beam import search
from tinytf.generate.decoder import Decoder, Kind, is_watched
from tinytf.generate.implemented import IMPLEMENTED, UNRELATED, WORDS, unimplemented
from tinytf.generate.kernels import Kernels, NumpyKernels
from tinytf.generate.loop import Looking
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Transformer
from tinytf.steps.fused import FusedAttention
from tinytf.steps.operations.operation import Pass, repeat_groups
from tinytf.steps.operations.scale import scale_scores
from tinytf.steps.operations.scores import attention_scores

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
"""A value away from the default for each number that is said to be implemented, and what a field needs to matter."""
NEEDED = {"linear": {"positions": "rotary", "rope_factor": 3.0}, "llama3": ROPE, "yarn": YARN, "longrope": LONGROPE}
CLAIMED = [
    *((name, {**UNUSUAL.get(name, {}), **NEEDED.get(str(word), {}), name: word})
      for name, words in IMPLEMENTED.items() if not callable(words) for word in words),
    *((name, UNUSUAL.get(name, {})) for name, words in IMPLEMENTED.items() if callable(words)),
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_every_field_of_the_configuration_is_in_one_table_or_has_a_default(field: Field) -> None:
    """What no table names is implemented at its default alone, and that has to be a value of the field's own."""
    if field.name in IMPLEMENTED or field.name in UNRELATED:
        assert (field.name in IMPLEMENTED) != (field.name in UNRELATED)
    else:
        config = config_of("gpt2")
        assert config.setting(field.name) == field.default, f"the default of {field.name} is derived: list it"


def test_the_tables_name_fields_and_words_that_there_are() -> None:
    assert {*IMPLEMENTED, *UNRELATED} <= FIELDS.keys()
    for name, words in {**IMPLEMENTED, **UNRELATED}.items():
        if name in CHOICES:
            assert isinstance(words, tuple)
            assert set(words) <= set(CHOICES[name]), name


@torch.no_grad()
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize(("name", "fields"), CLAIMED, ids=str)
def test_every_value_that_is_said_to_be_implemented_is(name: str, fields: dict[str, Any], texts: int) -> None:
    assert name in fields, f"give an unusual value of {name} in UNUSUAL"
    model = lively(ModelConfig.of(**{**SIZES, **fields}))
    ids = some_ids(model.config, texts, 9)
    cache = model.cache(batch=texts)
    decoder = Decoder(model, cache, texts)
    found = torch.stack([decoder(column) for column in ids.unbind(1)], dim=1)
    assert furthest(found, model(ids)) < 1e-5


@pytest.mark.parametrize(
    ("name", "value"),
    [("norm_order", "sandwich"), ("positions", "alibi"), ("activation", "swish"), ("norm_eps", (1e-5, 1e-6)),
     ("window", (4, 0)), ("d_ff", (40, 80)), ("n_kv_heads", [4, 2]), ("activation", ("relu", "gelu"))],
    ids=str,
)  # fmt: skip
def test_a_value_that_a_known_field_gets_one_day_is_not_implemented(name: str, value: object) -> None:
    config = config_of("gpt2")
    assert unimplemented(config) == ()
    object.__setattr__(config, name, value)
    assert unimplemented(config) == (WORDS.get(name, f"{name} {value!r}"),)


FUTURE: list[tuple[str, Any, Any]] = [
    ("expert_groups", 1, 4),
    ("windows", (), (0, 4)),
    ("attn_scale", 0.0, 0.1),
    ("score_clip", 0.0, 1.0),
    ("logit_clip", 0.0, 30.0),
    ("rotary_share", 1.0, 0.5),
    ("attention_bias", None, "alibi"),
]


def config_with(name: str, default: object, value: object, **fields: object) -> ModelConfig:
    """A configuration with one more setting, which has to be in FIELDS."""
    FIELDS[name] = Field(name, type(default), default)
    config = ModelConfig.of(**{**SIZES, "tied_head": False, **fields})
    config.__dict__[name] = value
    config.__dict__["_hash"] = hash((name, value))
    return config


@pytest.fixture(autouse=True)
def no_more_fields() -> Iterator[None]:
    """What a test adds to FIELDS is taken out again."""
    known = dict(FIELDS)
    yield
    for name in FIELDS.keys() - known.keys():
        del FIELDS[name]


@pytest.mark.parametrize(("name", "default", "value"), FUTURE, ids=str)
def test_a_field_that_is_added_reaches_the_decoder_at_its_default_alone(
    name: str, default: object, value: object
) -> None:
    assert Decoder.fits(lively(config_with(name, default, default)))
    model = lively(config_with(name, default, value))
    assert not Decoder.fits(model)
    for kind in (Kind(quantize=True), Kind(compile=True)):
        with pytest.raises(UsageError, match=f"compiled and int8 decoding do not implement {name} "):
            steps_of(model, kind=kind)


def capped(core: FusedAttention, now: Pass, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The fused core with a soft cap on its scores, which the fast kernels know nothing of."""
    n_heads, length, width = q.shape[1:]
    scores = scale_scores(attention_scores(q, repeat_groups(k, n_heads)), width).tanh()
    allowed = core.sight.allowed(length, now.padding_mask, q.device, k.shape[2] - length)
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ repeat_groups(v, n_heads)


@pytest.mark.parametrize(
    "settings",
    [{}, {"samples": 3, "sampling": WARM}, {"chunk": 2}, {"on_overflow": "slide", "max_tokens": 40}],
    ids=str,
)
def test_a_setting_that_is_not_implemented_is_decoded_as_the_plain_forward_computes_it(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    usual = steps_of(untied("gpt2"), **settings)
    monkeypatch.setattr(FusedAttention, "__call__", capped)
    monkeypatch.setattr(Decoder, "__call__", lambda *_: pytest.fail("the fast decoder was asked"))
    model = lively(config_with("score_clip", 0.0, 1.0, activation="gelu_tanh"))
    found = steps_of(model, **settings)
    uncached = {name: value for name, value in settings.items() if name != "chunk"}
    assert_same(found, steps_of(model, use_cache=False, **uncached))
    assert {step.note for step in found} == {""}  # nothing went wrong
    assert [step.log_probability for step in found] != pytest.approx([step.log_probability for step in usual])
    if not settings:
        ids = torch.tensor([[*PROMPT, *(step.id for step in found)]])
        with torch.no_grad():
            own = model(ids)[0, len(PROMPT) - 1 : -1].log_softmax(-1)
        assert [step.id for step in found] == own.argmax(-1).tolist()
        assert [step.log_probability for step in found] == pytest.approx(own.amax(-1).tolist(), abs=1e-5)


@pytest.mark.parametrize("samples", [1, 2])
def test_what_the_modules_looked_at_is_what_the_decoder_would_have(samples: int) -> None:
    settings: dict[str, Any] = {"looking": Looking(), "samples": samples, "sampling": WARM, "chunk": 3}
    model = lively(config_with("score_clip", 0.0, 1.0))  # of which nothing here takes notice
    fast = lively(config_with("score_clip", 0.0, 0.0))
    found = steps_of(model, **settings)
    for ours, theirs in zip(found, steps_of(fast, **settings), strict=True):
        assert torch.allclose(ours.attention, theirs.attention, atol=1e-5)
    assert not is_watched(model)


def unscaled(kernels: NumpyKernels, q: Any, *others: Any) -> Any:
    return NUMPY_ATTEND(kernels, 2 * q, *others)


def blind(kernels: Kernels, q: Tensor, k: Tensor, v: Tensor, stored: Any, place: Any) -> Tensor:
    """Writes where it should not, too."""
    stored[0].zero_()
    return TORCH_ATTEND(kernels, q, k, v, stored, place)


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
        unchecked.setattr(runner_module, "_apart", lambda *_: 0.0)
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
    monkeypatch.setattr(NumpyKernels, "attend", lambda kernels, q, *_: q.reshape(-1) * float("nan"))
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


def test_every_word_of_the_configuration_that_is_not_implemented_has_one_that_a_user_reads() -> None:
    for name, words in CHOICES.items():
        if name in IMPLEMENTED and name not in ("head", "causal") and not set(words) <= set(IMPLEMENTED[name]):
            assert name in WORDS
    assert set(WORDS) <= FIELDS.keys()


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
    assert runner_module._apart(found, expected) == pytest.approx(0.01)
    assert runner_module._apart(found[:, :2], expected[:, :2]) == pytest.approx(0.5 / 1.5)
    assert runner_module._apart(torch.tensor([[0.1, torch.inf]]), torch.tensor([[0.0, 0.0]])) == torch.inf
    assert not runner_module._apart(torch.tensor([[torch.nan, 0.0]]), torch.tensor([[0.0, 0.0]])) <= 1e9
