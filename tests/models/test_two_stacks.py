"""A stack that reads another: bound to a source, in batches, with a cache, and with either stack changed."""

import pytest
import torch
from architectures import asked, config_of, encoding_of, lively

from tinytf.cause.interventions import Intervention, hook_points, intervening
from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Source, Transformer, reading
from tinytf.presets import PRESETS
from tinytf.trace.record import record
from tinytf_cli.command import _of_one_stack

STACKS = ["t5, two stacks", "bart, two stacks", "two stacks that norm what they add, with a cap"]
SOURCES = [[4, 9, 16, 25, 6, 7, 30], [8, 3, 3], [1, 2, 29, 28, 5]]
IDS = torch.tensor([[3, 14, 15, 9, 2, 6]])
of_two = pytest.mark.parametrize("kind", STACKS)


def bound(model: Transformer, ids: list[int]) -> Transformer:
    trace = record(model.encoder, encoding_of(ids))
    return reading(model, Source(trace.last_hidden[None], trace=trace))


@of_two
@torch.no_grad()
def test_a_batch_of_several_sources_is_each_by_itself(kind):
    model = lively(config_of(kind))
    length = max(map(len, SOURCES))
    ids = torch.tensor([[*source, *[0] * (length - len(source))] for source in SOURCES])
    mask = torch.arange(length) < torch.tensor([[len(source)] for source in SOURCES])
    states = model.encoder.hidden(ids, padding_mask=mask)
    together = model.hidden(IDS.expand(3, -1), source=Source(states, mask))
    for row, source in zip(together, SOURCES, strict=True):
        torch.testing.assert_close(row, bound(model, source).hidden(IDS)[0], rtol=1e-5, atol=1e-5)


@of_two
@torch.no_grad()
def test_every_row_by_itself_gives_what_the_kernels_give(kind):
    model = lively(config_of(kind))
    fused = model.hidden(IDS)
    model.fuse(False)
    torch.testing.assert_close(model.hidden(IDS), fused, rtol=1e-5, atol=1e-5)


@of_two
@torch.no_grad()
def test_a_cache_gives_what_the_whole_target_gives(kind):
    model = lively(config_of(kind))
    cache = model.cache()
    pieces = [model.hidden(IDS[:, first : first + 1], cache=cache) for first in range(IDS.shape[1])]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model.hidden(IDS), rtol=1e-5, atol=1e-5)


@of_two
@torch.no_grad()
def test_keys_of_a_source_are_computed_with_the_first_token_alone(kind, monkeypatch):
    """Also after texts are chosen among, as beams are, and anew for another source in the same cache."""
    model = lively(config_of(kind))
    calls, project = [], model.blocks[0].cross.k.forward
    monkeypatch.setattr(model.blocks[0].cross.k, "forward", lambda x: calls.append(len(x)) or project(x))
    ids = torch.tensor([[3, 14, 15], [3, 7, 9]])
    sources = [bound(model, one).reads.states for one in (SOURCES[0], [5, *SOURCES[0][1:]])]
    cache, both = model.cache(batch=2), Source(torch.cat(sources))
    model.hidden(ids[:, :1], cache=cache, source=both)
    model.hidden(ids[:, 1:2], cache=cache, source=both)
    cache.select([1, 1])
    last = model.hidden(ids[:, 2:], cache=cache, source=Source(both.states[[1, 1]]))
    assert calls == [2]
    whole = torch.stack([ids[1, 0], ids[1, 1], ids[0, 2]])[None]
    torch.testing.assert_close(last[:1], model.hidden(whole, source=Source(sources[1]))[:, 2:], rtol=1e-5, atol=1e-5)
    cache.clear()
    again = model.hidden(ids, cache=cache, source=Source(both.states.flip(0)))
    torch.testing.assert_close(again, model.hidden(ids, source=Source(both.states.flip(0))), rtol=1e-5, atol=1e-5)


@of_two
@torch.no_grad()
def test_a_changed_head_of_the_encoder_changes_what_is_read(kind):
    model = lively(config_of(kind))
    (point,) = hook_points("enc.L0H1", record(model, encoding_of([3, 1])).steps)
    (own,) = hook_points("L0H1", record(model.encoder, encoding_of([3, 1])).steps)
    before = model.hidden(IDS)
    with intervening(model, [Intervention(point, torch.zeros(()))]):
        after = model.hidden(IDS)
    with intervening(model.encoder, [Intervention(own, torch.zeros(()))]):
        states = model.encoder.hidden(torch.tensor([model.reads.trace.encoding.ids]))
    torch.testing.assert_close(after, model.hidden(IDS, source=Source(states)))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(model.hidden(IDS), before)


@of_two
def test_all_of_the_encoder_patched_is_all_of_the_clean_run(kind):
    model = asked(lively(config_of(kind)))
    clean, corrupt = (model.reading(" ".join(map(str, ids))) for ids in ([4, 9, 16, 25], [4, 9, 1, 25]))
    last = model.transformer.encoder.config.n_layers - 1
    end = "norm2" if model.config.encoder.norm_order == "post" else "out"
    found = model.patch(clean.trace("3 14 15"), corrupt.trace("3 14 15"), [f"enc.L{last}.{end}"], answer=5, versus=9)
    assert found.recovered == pytest.approx(1, abs=1e-4)


def test_another_precision_reads_the_source_again():
    model = lively(config_of(STACKS[0])).double()
    states = model.encoder.hidden(torch.tensor([model.reads.trace.encoding.ids]))
    torch.testing.assert_close(model.reads.states, states, rtol=0, atol=0)


def test_addresses_name_steps_of_either_stack():
    model = lively(config_of(STACKS[1]))
    trace = record(model, encoding_of(IDS[0].tolist()))
    assert trace["enc.L0H1.weights"].shape == (7, 7)
    torch.testing.assert_close(trace["dec.L1H2.cross.weights"], trace["L1H2.cross.weights"])
    assert trace["L1H2.cross.weights"].shape == (6, 7)
    torch.testing.assert_close(trace["source"], trace.source.last_hidden)
    with pytest.raises(AddressError, match="one stack"):
        model.encoder.config and record(lively(config_of("gpt2")), encoding_of([1]))["L0.cross.q"]


def test_a_model_of_two_stacks_says_that_it_has_no_source():
    model = Transformer.initialised(config_of(STACKS[0]), 0)
    with pytest.raises(UsageError, match="its source, and has none"):
        model.hidden(IDS)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--at", "enc.L0H1", "x"], ["--at", "L0H1", "x", "--stack", "encoder"]),
        (["--at=enc.L0.q", "enc.x"], ["--at=L0.q", "enc.x", "--stack", "encoder"]),
        (["dec.L0H1.cross.q[0]"], ["L0H1.cross.q[0]"]),
        (["The dec. 3"], ["The dec. 3"]),
    ],
)
def test_a_command_asks_about_the_stack_that_an_address_names(typed, read):
    assert _of_one_stack(typed) == read


def test_the_shapes_of_the_paper_have_its_number_of_parameters():
    """Counted by hand: a shared table, then attention without biases, feed-forwards, and norms with gain and bias."""
    width, inner, attention = 512, 2048, 4 * 512**2
    feed_forward, norm = 2 * width * inner + inner + width, 2 * width
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    count = 37_000 * width + 6 * (encoder + decoder)
    with torch.device("meta"):
        model = Transformer(PRESETS["paper-translation"])
        model.share_layers()
    assert sum(parameter.numel() for parameter in model.parameters()) == count == 63_045_632
    assert count == pytest.approx(65e6, rel=0.035)  # what its Table 3 says of the base model
