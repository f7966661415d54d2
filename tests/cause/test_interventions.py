"""Ablation and patching against models whose weights were cut, and against one hooked forward pass for each."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from architectures import KINDS, SIZES, asked, config_of, encoding_of, lively, mixer_of, some_ids, zeroed
from torch import Tensor

from tinytf.cause.interventions import (
    Ablation,
    AblationSweep,
    HookPoint,
    Intervention,
    Patched,
    PatchSweep,
    UnevenTexts,
    intervening,
    reference_of,
)
from tinytf.config import ModelConfig
from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

WITH_HEAD = [kind for kind in KINDS if config_of(kind).head.kind != "none"]
kinds = pytest.mark.parametrize("kind", WITH_HEAD)
LENGTH, MASK = 9, 5


def traced(model: Transformer, seed: int) -> Trace:
    """A trace of random tokens; of an encoder with the mask at 5."""
    ids = some_ids(model.config, 1, LENGTH, seed)[0].tolist()
    if not model.config.causal:
        ids = [token if token != 30 else 0 for token in ids]
        ids[MASK] = 30
    return record(model, encoding_of(ids), None if model.config.causal else 30)


def ablate(trace: Trace, at: Sequence[str], **settings: Any) -> Ablation:
    return asked(trace.model).ablate(trace, at, **settings)


def ablate_sweep(trace: Trace, over: str = "heads", **settings: Any) -> AblationSweep:
    return asked(trace.model).ablate_sweep(trace, over, **settings)


def patch(clean: Trace, corrupt: Trace, at: Sequence[str], **settings: Any) -> Patched:
    return asked(clean.model).patch(clean, corrupt, at, **settings)


def patch_sweep(clean: Trace, corrupt: Trace, over: str = "residual", **settings: Any) -> PatchSweep:
    return asked(clean.model).patch_sweep(clean, corrupt, over, **settings)


def position_of(trace: Trace) -> int:
    return trace.recording.logit_rows[-1]


@torch.no_grad()
def logits_of(model: Transformer, trace: Trace) -> Tensor:
    """The logits of a trace's text at its position, by a plain forward pass of a model."""
    return model(torch.tensor([trace.encoding.ids]))[0, position_of(trace)]


@torch.no_grad()
def without(model: Transformer, name: str) -> Transformer:
    """The model with the weights cut that lead out of a head, a feed-forward or a layer."""
    cut = copy.deepcopy(model)
    layer, _, rest = name.removeprefix("L").partition("H" if "H" in name else ".")
    block: Any = cut.blocks[int(layer)]
    for module in block.modules():  # which another layer may share
        for own, parameter in module.named_parameters(recurse=False):
            setattr(module, own, torch.nn.Parameter(parameter.clone()))
    if "H" in name:
        width = model.config.at(int(layer)).value_width
        columns = slice(int(rest) * width, (int(rest) + 1) * width)
        if model.config.out_norm:  # which sees all heads
            block.attention.out_norm.register_forward_pre_hook(lambda _, given: (zeroed(given[0], columns),))
        elif model.config.o_rank:
            group, head = divmod(int(rest), model.config.heads_in_group)
            rows = block.attention.o_a.weight.unflatten(0, (model.config.o_groups, -1))[group]
            rows[:, head * width : (head + 1) * width] = 0.0
        else:
            mixer_of(block).o.weight[:, columns] = 0.0
        return cut
    as_added = rest == "" or "_" in rest  # with the norm between, whose bias would still be added
    rest = "ffn" if rest.startswith("ffn_") else rest  # convolved, normed or scaled before it is added
    ffn, mixer = dict(block.named_children()).get("ffn"), mixer_of(block)
    ends = ("down", "constant")  # of each expert, and the bias of their sum
    out_of_ffn = [module for path, module in ffn.named_modules() if path.endswith(ends)] if ffn else []
    if rest == "" and hasattr(block, "ple"):
        block.ple.out.weight.zero_()  # what the layer's own embeddings add
    if rest == "" and hasattr(block, "ngram"):
        block.ngram.value.weight.zero_()
    if model.config.identity_experts and model.config.at(int(layer)).experts:  # experts without matrices
        block.ffn.sum.register_forward_hook(lambda _, args, result: torch.zeros_like(result))
    if rest == "" and hasattr(block, "side"):
        for parameter in block.side.conv.parameters():  # the convolution of its input
            parameter.zero_()
    if rest == "" and hasattr(block, "cross"):
        for parameter in block.cross.o.parameters():
            parameter.zero_()
    if rest == "" and model.config.laurel_rank:
        block.laurel.out.register_forward_hook(lambda module, given, result: torch.zeros_like(result))
    for part, linears in (("attn", [mixer.o] if mixer else []), ("ffn", out_of_ffn)):
        for parameter in (one for linear in linears if rest in ("", part) for one in linear.parameters()):
            parameter.zero_()
        if as_added and rest in ("", part) and model.config.norm_order == "output":
            for parameter in getattr(block, f"{part}_norm").parameters():
                parameter.zero_()
    return cut


@kinds
@pytest.mark.parametrize("what", ["heads", "ffn", "layers"])
def test_a_sweep_is_what_cutting_the_weights_gives(kind: str, what: str) -> None:
    model = lively(config_of(kind))
    trace = traced(model, 5)
    target = 7
    found = ablate_sweep(trace, what, target=target)
    layers = map(model.config.at, range(model.config.n_layers))
    count = sum(layer.n_heads if what == "heads" else what != "ffn" or layer.d_ff > 0 for layer in layers)
    assert len(found.names) == count == int(found.kl.isfinite().sum())
    before = logits_of(model, trace).double().log_softmax(-1)
    for name, effect in zip(found.names, found.effects, strict=True):
        after = logits_of(without(model, name), trace).double().log_softmax(-1)
        kl = float(F.kl_div(after, before, log_target=True, reduction="sum"))
        assert effect.kl == pytest.approx(kl, abs=1e-5), name
        assert effect.change == pytest.approx(float(after[target] - before[target]), abs=1e-5), name
        assert effect.best == int(after.argmax()), name
    assert found.check.holds
    assert max(effect.kl for effect in found.effects) > 1e-3


@kinds
def test_several_at_once_are_cut_together(kind: str) -> None:
    model = lively(config_of(kind))
    trace = traced(model, 5)
    names = ["L0H1", f"L0H{model.config.at(0).n_heads - 1}", "L1.ffn"]
    cut = model
    for name in names:
        cut = without(cut, name)
    found = ablate(trace, names)
    before, after = (logits_of(one, trace).double().log_softmax(-1) for one in (model, cut))
    assert found.target == int(before.argmax())
    assert found.effect.after == pytest.approx(float(after[found.target]), abs=1e-5)
    for choice in found.choices:
        assert choice.after == pytest.approx(float(after[choice.id].exp()), abs=1e-6)
    assert found.check.difference == 0.0


def test_the_loss_is_the_cross_entropy_of_the_text_before_and_after() -> None:
    model = lively(config_of("llama, grouped"))
    trace = traced(model, 5)
    found = ablate(trace, ["L1"])
    ids = torch.tensor([trace.encoding.ids])
    for one, loss in ((model, found.loss_before), (without(model, "L1"), found.loss_after)):
        expected = F.cross_entropy(one(ids)[0, :-1].double(), ids[0, 1:])
        assert loss == pytest.approx(float(expected.detach()), abs=1e-5)


def test_an_encoder_and_a_single_token_have_no_loss() -> None:
    model = lively(config_of("bert with a masked head"))
    assert ablate(traced(model, 5), ["L0"]).loss_before is None
    model = lively(config_of("gpt2"))
    assert ablate(record(model, encoding_of([3])), ["L0"]).loss_after is None


@contextmanager
def one_hook(model: Transformer, site: HookPoint, place: int | None, value: Tensor) -> Iterator[None]:
    """The obvious way: a hook that writes ``value`` into what a module gives or takes."""
    block: Any = model.blocks[site.layer]
    where = slice(None) if place is None else place

    def write(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        columns = slice(None) if site.head is None else slice(site.head * width, (site.head + 1) * width)
        tensor[0, where, columns] = value if place is None or value.dim() == 1 else value[place]
        return tensor

    width, o = model.config.at(site.layer).value_width, getattr(mixer_of(block), "o", None)
    ffn = getattr(block, "ffn", None)
    last = getattr(ffn, "down", None) or getattr(ffn, "sum", None)
    first = getattr(mixer_of(block), "o_a", getattr(mixer_of(block), "out_norm", o))
    modules = dict(block.named_children()) | {"in": block, "attn": o, "ffn": last, "out": block}
    module = first if site.head is not None else modules[site.step]
    if site.head is not None or site.step == "in":
        handle = module.register_forward_pre_hook(lambda _, args: (write(args[0]), *args[1:]))
    else:
        handle = module.register_forward_hook(lambda _, args, result: write(result))
    yield
    handle.remove()


@kinds
@pytest.mark.parametrize("what", ["residual", "heads", "attn", "ffn"])
def test_a_patching_sweep_is_one_hooked_forward_pass_for_each(kind: str, what: str) -> None:
    model = lively(config_of(kind))
    clean, corrupt = traced(model, 5), traced(model, 6)
    found = patch_sweep(clean, corrupt, what, answer=3, versus=4)
    for layer in range(model.config.n_layers):
        heads = clean.steps.head_output(layer)
        step = {"residual": "in", "heads": heads.name if heads else ""}.get(what, what)
        step += "_conv" * (model.config.added_conv > 0 and what in ("attn", "ffn"))  # what is added to the stream
        for column in range(found.values.shape[1]):
            if not clean.steps.has(step, layer) or (what == "heads" and column >= model.config.at(layer).n_heads):
                assert found.values[layer, column].isnan()
                continue
            site = HookPoint(step, layer, column if what == "heads" else None)
            value = clean.step(step, layer)[column] if what == "heads" else clean.step(step, layer)
            with one_hook(model, site, None if what == "heads" else column, value):
                logits = logits_of(model, corrupt).double()
            assert float(found.values[layer, column]) == pytest.approx(float(logits[3] - logits[4]), abs=1e-5)
    assert all(check.holds for check in found.checks)
    clean_one, corrupt_one = (logits_of(model, trace).double() for trace in (clean, corrupt))
    ends = [float(one[3] - one[4]) for one in (clean_one, corrupt_one)]
    layer = int((~found.values[:, 0].isnan()).nonzero()[0])
    assert float(found.recovered[layer, 0]) == pytest.approx(
        (float(found.values[layer, 0]) - ends[1]) / (ends[0] - ends[1]), rel=1e-4, abs=1e-4
    )


@pytest.mark.parametrize("most", [1, 20, 10_000])
def test_how_a_sweep_is_cut_into_batches_changes_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(config_of("mistral, a window and stretched waves", n_layers=3))
    clean, corrupt = traced(model, 5), traced(model, 6)
    expected = patch_sweep(clean, corrupt, "attn", answer=3, versus=4).values
    monkeypatch.setattr("tinytf.model.batches._TOKENS", {"cpu": most})
    seen: list[tuple[int, int]] = []
    found = patch_sweep(clean, corrupt, "attn", answer=3, versus=4, on_progress=lambda *done: seen.append(done))
    assert torch.allclose(found.values, expected, atol=1e-5)
    assert seen[-1] == (expected.numel(), expected.numel())
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@kinds
def test_patching_everything_is_the_clean_run_to_the_last_bit(kind: str) -> None:
    model = lively(config_of(kind))
    if table_of(model.config).reads_text or model.encoder is not None:
        pytest.skip("its layers take something beside the stream")
    clean, corrupt = traced(model, 5), traced(model, 6)
    everything = ["L0.in", "L0H*", "L1H*", "L*.attn", "L*.ffn", "L*.in", "L*.out"]
    for at in (["L0.in"], everything, [f"L{model.config.n_layers - 1}.out"]):
        found = patch(clean, corrupt, at, answer=3, versus=4)
        assert found.recovered == 1.0
        assert found.value == found.contrast.clean
        position = position_of(clean)
        probabilities = clean.logits_at(position).double().log_softmax(-1).exp()
        assert all(one.after == float(probabilities[one.id]) for one in found.choices)
        assert [check.difference for check in found.checks] == [0.0, 0.0]


@kinds
def test_patching_nothing_is_the_corrupt_run_to_the_last_bit(kind: str) -> None:
    model = lively(config_of(kind))
    clean, corrupt = traced(model, 5), traced(model, 6)
    ids = torch.tensor([corrupt.encoding.ids])
    plain = model(ids)
    with intervening(model, []):
        assert torch.equal(model(ids), plain)
    own = [
        Intervention(HookPoint("ffn", 1), corrupt.step("ffn", 1)),
        Intervention(HookPoint("head_out", 0, 2), corrupt["L0H2.head_out"]),
    ]
    with intervening(model, own):
        assert torch.equal(model(ids), plain)
    found = patch(clean, corrupt, ["L1.ffn"], positions=[], answer=3, versus=4)
    assert found.recovered == 0.0


def test_what_comes_before_the_first_difference_of_two_texts_carries_nothing() -> None:
    model = lively(config_of("gpt2"))
    ids = some_ids(model.config, 1, LENGTH, 5)[0].tolist()
    other = [*ids[:4], (ids[4] + 1) % 31, *ids[5:]]
    clean, corrupt = (record(model, encoding_of(one)) for one in (ids, other))
    found = patch_sweep(clean, corrupt, "residual", answer=3, versus=4)
    assert found.first == 4
    assert found.recovered[:, :4].eq(0.0).all()
    for place in range(4):
        assert patch(clean, corrupt, ["L1.in"], positions=[place], answer=3, versus=4).recovered == 0.0
    assert found.recovered[0, 4] == pytest.approx(1.0, abs=1e-4)


def texts_of(model: Transformer, lengths: tuple[int, ...]) -> Any:
    ids = iter([some_ids(model.config, 1, length, 20 + number)[0].tolist() for number, length in enumerate(lengths)])
    return reference_of("some texts", ["a"] * len(lengths), lambda _: encoding_of(next(ids)))


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "narrow heads, after the sum"])
def test_a_mean_is_over_all_positions_of_all_texts(kind: str) -> None:
    model = lively(config_of(kind))
    trace, texts = traced(model, 5), texts_of(model, (4, 9, 12))
    for name in ("L0H2", "L1.attn", "L1.ffn"):
        found = ablate(trace, [name], how="mean", reference=texts)
        site = HookPoint("head_out", 0, 2) if name == "L0H2" else HookPoint(name[3:], 1)
        rows = [record(model, text)["L0H2.head_out" if site.head else name] for text in texts.texts]
        with one_hook(model, site, None, torch.cat(rows).mean(dim=0)):
            after = logits_of(model, trace).double().log_softmax(-1)
        assert found.effect.after == pytest.approx(float(after[found.target]), abs=1e-5)
        assert found.source == "mean over 3 texts, 25 tokens of some texts"


def test_progress_counts_the_texts_of_a_mean_and_the_ablations() -> None:
    model = lively(config_of("gpt2"))
    seen: list[tuple[int, int]] = []
    ablate_sweep(
        traced(model, 5), how="mean", reference=texts_of(model, (4, 9)), on_progress=lambda *done: seen.append(done)
    )
    assert seen == [(1, 10), (2, 10), (10, 10)]


def test_resampling_takes_the_same_positions_of_another_text_that_the_seed_draws() -> None:
    model = lively(config_of("gpt2"))
    trace = traced(model, 5)
    own = trace.encoding.ids
    others = [some_ids(model.config, 1, length, length)[0].tolist() for length in (4, 9, 12)]
    ids = iter([own, *others])
    texts = reference_of("some texts", ["a"] * 4, lambda _: encoding_of(next(ids)))
    drawn = set()
    for seed in range(8):
        found = ablate(trace, ["L0.ffn"], how="resample", reference=texts, seed=seed)
        assert found == ablate(trace, ["L0.ffn"], how="resample", reference=texts, seed=seed)
        number = int(found.source.split()[2]) - 1
        drawn.add(number)
        value = record(model, texts.texts[number])["L0.ffn"][:LENGTH]
        with one_hook(model, HookPoint("ffn", 0), None, value):
            after = logits_of(model, trace).double().log_softmax(-1)
        assert found.effect.after == pytest.approx(float(after[found.target]), abs=1e-5)
    assert drawn == {2, 3}  # neither the text itself nor the one of four tokens


def test_nothing_to_take_values_from_is_an_error() -> None:
    model = lively(config_of("gpt2"))
    trace = traced(model, 5)
    with pytest.raises(UsageError, match="has no texts of its own"):
        ablate(trace, ["L0"], how="mean")
    with pytest.raises(UsageError, match="has the 9 tokens of this one; the longest has 8"):
        ablate_sweep(trace, how="resample", reference=texts_of(model, (3, 8)))
    with pytest.raises(UsageError, match="no way to ablate 'meen'"):
        ablate(trace, ["L0"], how="meen")


def test_a_trace_in_an_ablated_model_shows_the_values_and_afterwards_nothing_is_left() -> None:
    model = lively(config_of("llama, grouped"))
    plain = traced(model, 5)
    zeros = torch.zeros(model.config.d_head)
    with intervening(
        model, [Intervention(HookPoint("head_out", 0, 3), zeros), Intervention(HookPoint("ffn", 1), torch.zeros(24))]
    ):
        trace = traced(model, 5)
        assert torch.equal(trace["L0H3.head_out"], torch.zeros_like(trace["L0H3.head_out"]))
        assert torch.equal(trace["L0H2.head_out"], plain["L0H2.head_out"])
        assert torch.equal(trace["L1.out"], trace["L1.mid"])
    cut = without(without(model, "L0H3"), "L1.ffn")
    position = position_of(plain)
    assert torch.allclose(trace.logits_at(position), logits_of(cut, plain), atol=1e-5)
    with pytest.raises(ZeroDivisionError), intervening(model, [Intervention(HookPoint("attn", 0), torch.zeros(24))]):
        raise ZeroDivisionError
    assert torch.equal(traced(model, 5).logits_at(position), plain.logits_at(position))


def test_a_value_of_some_positions_goes_with_texts_of_that_length_alone() -> None:
    model = lively(config_of("gpt2"))
    value = torch.zeros(4, 24)
    with intervening(model, [Intervention(HookPoint("attn", 0), value)]):
        model(torch.tensor([[1, 2, 3, 4]]))
        with pytest.raises(UsageError, match="has 4 tokens, and the text 5"):
            model(torch.tensor([[1, 2, 3, 4, 5]]))
    beyond = Intervention(HookPoint("attn", 0), torch.zeros(24), (4,))
    with intervening(model, [beyond]), pytest.raises(UsageError, match="at position 4, and the text has 3 tokens"):
        model(torch.tensor([[1, 2, 3]]))


def test_a_model_in_training_is_looked_at_without_dropout_and_left_in_training() -> None:
    model = lively(config_of("gpt2", dropout=0.5))
    trace = traced(model, 5)
    expected = ablate_sweep(trace)
    model.train()
    assert ablate_sweep(trace) == expected
    assert ablate(trace, ["L0H0"]).check.difference == 0.0
    assert model.training


def test_texts_of_different_lengths_say_where_they_part() -> None:
    model = lively(config_of("gpt2"))
    words = ("The", "·cat", "·sat", "·on")
    clean = record(model, encoding_of([1, 2, 3, 4], words))
    corrupt = record(model, encoding_of([1, 9, 8, 3, 4], ("The", "·pol", "ecat", "·sat", "·on")))
    with pytest.raises(
        UnevenTexts, match="4 and 5 tokens, clean and corrupt: at token 2 nothing is against ecat"
    ) as raised:
        patch_sweep(clean, corrupt)
    assert raised.value.aligned == (
        ("The", "The"), ("·cat", "·pol"), (None, "ecat"), ("·sat", "·sat"), ("·on", "·on"),
    )  # fmt: skip
    assert raised.value.exit_status == 2


def test_what_cannot_be_measured_is_an_error() -> None:
    model = lively(config_of("gpt2"))
    clean, corrupt = traced(model, 5), traced(model, 6)
    with pytest.raises(UsageError, match="the same tokens"):
        patch(clean, clean, ["L0.in"])
    with pytest.raises(UsageError, match="both are one token"):
        patch(clean, corrupt, ["L0.in"], answer=3, versus=3)
    with pytest.raises(UsageError, match="no position 9"):
        patch(clean, corrupt, ["L0.in"], answer=3, versus=4, positions=[9])
    with torch.no_grad():
        model.embed.tokens.weight[4] = model.embed.tokens.weight[3]  # tied: both tokens have one logit
    clean, corrupt = (record(model, encoding_of([1, one, 2])) for one in (5, 6))
    with pytest.raises(UsageError, match="is 0 in both runs"):
        patch_sweep(clean, corrupt, answer=3, versus=4)
    with torch.no_grad():
        model.embed.tokens.weight[9] = float("nan")
    with pytest.raises(TinytfError, match="not every number is finite, first at logits"):
        ablate_sweep(record(model, encoding_of([1, 2])))


@pytest.mark.parametrize(
    ("address", "said"),
    [("embed.out", "no step of a layer with a row a token"), ("logits", "cannot be replaced"), ("L0.ffn[20]", "20")],
)
def test_a_step_that_cannot_be_replaced_is_an_error(address: str, said: str) -> None:
    trace = traced(lively(config_of("gpt2")), 5)
    with pytest.raises(AddressError, match=said):
        ablate(trace, [address])


def test_a_model_without_a_head_predicts_nothing() -> None:
    model = lively(config_of("bert with a pooler"))
    with pytest.raises(UsageError, match="no language-model head"):
        ablate_sweep(traced(model, 5))


def test_names_of_transformer_lens_are_understood() -> None:
    trace = traced(lively(config_of("gpt2")), 5)
    assert ablate(trace, ["blocks.1.hook_mlp_out"]).sites == (HookPoint("ffn", 1),)
    assert len(ablate(trace, ["blocks.1.attn.hook_z"]).sites) == ModelConfig.of(**SIZES).n_heads
