"""Every question about a model of every family: its check, gradients, lens, attribution, ablation and patching hold."""

import copy
from typing import Any

import pytest
import torch
from architectures import asked, furthest, mixer_of, zeroed
from reference import FAMILIES, Pair, pair
from torch import nn

from tinytf.api import Model
from tinytf.errors import UsageError
from tinytf.generate.decoder import Decoder
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import record_gradients
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.address import Address
from tinytf.trace.check import check
from tinytf.trace.trace import Trace

IDS = [3, 14, 15, 9, 2, 6, 5, 30, 3, 11]
TEXT = " ".join(str(token) for token in IDS)
OTHER = "3 14 15 8 2 6 5 30 3 11"


_first_of: dict[tuple[Any, ...], str] = {}
"""The first family, in this process, that has a program."""


def program(ours: Transformer) -> tuple[Any, ...]:
    """What the rows of a model compute from which, whatever their sizes and constants."""
    settings = (
        sorted((name, value) for name, value in vars(step.operation or step).items() if isinstance(value, bool | str))
        for step, _ in table_of(ours.config).rows
    )
    rows = (
        (step.full_name(layer), step.axes, step.inputs, type(step.operation), str(own))
        for (step, layer), own in zip(table_of(ours.config).rows, settings, strict=True)
    )
    return *rows, *(name for name, _ in ours.named_parameters())


@pytest.fixture(scope="module", params=FAMILIES)
def models(request) -> Pair:
    """Both models of a family whose program no family before it has."""
    found = pair(request.param)
    first = _first_of.setdefault(program(found.ours), request.param)
    if first != request.param:
        pytest.skip(f"it has the program of {first}")
    return found


@pytest.fixture(scope="module")
def model(models) -> Model:
    """In float64, and with the position to fill where it is an encoder."""
    ours = copy.deepcopy(models.ours).double().requires_grad_(False)
    return asked(ours, None if ours.config.causal else IDS[-1])


@pytest.fixture(scope="module")
def trace(model) -> Trace:
    return model.trace(TEXT)


def needs_choice(model: Model) -> None:
    if model.config.head.kind not in ("lm", "mlm", "sequence") or not table_of(model.config).chooses:
        pytest.skip("it has no one choice of tokens or classes")


def test_its_steps_add_up(trace) -> None:
    checked = check(trace)
    assert checked.holds, checked.telling
    assert checked.telling.relative < 1e-12


def test_a_cell_of_every_step_is_explained(model, trace) -> None:
    for step, layer in trace.steps.rows:
        if not step.axes or layer not in (None, 0, trace.config.n_layers - 1):
            continue
        last = "0" if step.axes[-1] in ("label", "sink", "switch", "stream") else "2"
        cell = ("4", last)[: len(step.axes[-2:])] if len(step.axes) > 1 else ("0",)
        where = Address(step, None if layer is None else (layer,), (1,) if step.is_split else None, cell)
        found = model.explain(trace, where)[0]
        assert found.holds, f"{where} is {found.recorded}, and explained as {found.total}"


def test_gradients_by_hand_are_those_of_autograd(model, trace) -> None:
    needs_choice(model)
    ids = tuple(one % model.config.n_outcomes for one in (11, 7, 2))
    found = agreement(record_gradients(model.transformer, trace.encoding, Targets((8, 4, 4), ids)))
    assert found.telling.relative < 1e-9, found.telling
    assert set(found.parameters) == {
        name for name, _ in model.transformer.named_parameters() if not ("pooler" in name or ".index_" in name)
    }


def test_the_lens_ends_with_the_prediction_and_attribution_sums_to_the_logit(model, trace) -> None:
    needs_choice(model)
    assert model.lens(trace).holds
    found = model.attribute(trace)
    assert found.holds, found.difference
    assert found.sum == pytest.approx(found.logit, abs=1e-10)


def test_a_head_ablated_is_one_whose_columns_of_the_output_matrix_are_0(model, models, trace) -> None:
    needs_choice(model)
    config = model.config
    found = model.ablate(trace, "L1H2")
    assert found.check.holds
    without = copy.deepcopy(models.ours).double()
    last = mixer_of(without.blocks[1]).o
    width = config.at(1).value_width
    heads = columns = slice(2 * width, 3 * width)
    if config.o_rank:  # whose first matrix compresses groups of heads
        mixer_of(without.blocks[1]).o_a.register_forward_pre_hook(lambda _, given: (zeroed(given[0], heads),))
        columns = slice(0, 0)
    if config.out_norm:  # which sees all heads
        norm = without.blocks[1].attention.out_norm
        norm.register_forward_pre_hook(lambda _, given: (zeroed(given[0], columns),))
    with torch.no_grad():
        last.weight = nn.Parameter(last.weight.clone())  # of this layer
        last.weight[:, columns] = 0.0
        before, after = (
            one(torch.tensor([trace.encoding.ids]))[0, found.position].log_softmax(-1)
            for one in (model.transformer, without)
        )
    assert found.effect.kl == pytest.approx(float((before.exp() * (before - after)).sum()), abs=1e-10)


def test_the_stream_patched_everywhere_gives_the_other_run(model) -> None:
    needs_choice(model)
    answer, versus = (0, 1) if model.config.labels else (7, 21)
    table = table_of(model.config)
    if table.reads_text:
        pytest.skip("its layers read the text beside the stream")
    taken = {at for layer in range(model.config.n_layers) for _, at in table.taken(layer).values()}
    whole = 0 if 0 in taken else 1  # a layer below which nothing is taken beside the stream
    found = model.patch(TEXT, OTHER, f"L{whole}.in", answer=answer, versus=versus)
    assert found.recovered == pytest.approx(1.0, abs=1e-9)
    assert all(check.holds for check in found.checks)


@torch.no_grad()
def test_the_fast_decoder_or_the_modules_give_the_plain_logits_token_by_token(models) -> None:
    ours = models.ours
    if ours.config.head.kind != "lm" or not ours.config.causal:
        pytest.skip("it generates nothing")
    ids = torch.tensor([IDS])
    expected = ours(ids)[0]
    cache = ours.cache()
    found = [ours.unembed(ours.hidden(ids[:, :4], cache=cache))[0]]
    decode = Decoder(ours, cache) if Decoder.fits(ours) else None
    for place in range(4, len(IDS)):
        if cache.is_turned(place + 1):  # as generation does: what is kept is of no use, and all is computed anew
            assert furthest(torch.cat(found), ours(ids[:, :place])[0]) < 1e-5
            with pytest.raises(UsageError, match=f"a text of {place + 1} tokens is turned by other angles"):
                ours.hidden(ids[:, place : place + 1], cache=cache)
            cache.clear()
            found = [ours.unembed(ours.hidden(ids[:, : place + 1], cache=cache))[0]]
            continue
        one = ids[:, place]
        found.append(decode(one) if decode else ours.unembed(ours.hidden(one[:, None], cache=cache))[0])
    assert furthest(torch.cat(found), expected) < 2e-5
