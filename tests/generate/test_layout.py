"""Weights that were moved side by side are the same parameters, with the same values, to everyone who asks."""

import copy
from pathlib import Path

import pytest
import torch
import transformers
from architectures import KINDS, config_of, lively, mixer_of, some_ids
from reference import FAMILIES, is_encoder, pair
from safetensors.torch import load_file
from torch import Tensor

from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.run import load_run, save_run
from tinytf.config import ModelConfig
from tinytf.generate.loop import stream
from tinytf.memory import page_out
from tinytf.model.layout import joined, lay_out, products
from tinytf.model.transformer import Transformer
from tinytf.sources import ASSETS
from tinytf.text.tokenizer import Tokenizer

DECODERS = [kind for kind, fields in KINDS.items() if fields.get("causal", True)]
DECODER_FAMILIES = [name for name in FAMILIES if not is_encoder(name)]
BOTH_HEADS = {"tied": config_of("gpt2"), "untied": config_of("llama, grouped")}


def values_of(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_values(model: Transformer, expected: dict[str, Tensor]) -> None:
    found = dict(model.named_parameters())
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


def places_of(model: Transformer) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", DECODERS)
def test_no_value_changes_and_the_parameters_are_the_same_objects(kind: str, tied: bool) -> None:
    model = lively(config_of(kind, tied_head=tied))
    expected, objects = values_of(model), list(model.parameters())
    lay_out(model)
    assert_values(model, expected)
    assert all(now is before for now, before in zip(model.parameters(), objects, strict=True))
    assert (model.unembedding is model.embed.tokens.weight) is tied
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("family", DECODER_FAMILIES)
def test_no_value_of_a_loaded_model_changes_however_its_file_had_it(family: str) -> None:
    model = pair(family).ours
    expected = values_of(model)
    lay_out(model)
    assert_values(model, expected)
    for block in model.blocks:  # what is no product stays as the file had it
        for row in (row for rows in products(block) for row in rows):
            assert row.module.weight.is_contiguous(), row.name


def test_a_transposed_weight_becomes_rows_one_behind_the_other() -> None:
    model = lively(config_of("gpt2"))
    for module in (model.blocks[0].attention.k, model.blocks[1].ffn.down):
        module.weight.data = module.weight.data.T.contiguous().T
        assert not module.weight.is_contiguous()
    expected = values_of(model)
    lay_out(model)
    assert_values(model, expected)
    assert model.blocks[0].attention.k.weight.is_contiguous()
    assert model.blocks[1].ffn.down.weight.is_contiguous()


@pytest.mark.parametrize("kind", DECODERS)
def test_what_is_joined_are_the_parameters_themselves_without_a_copy(kind: str) -> None:
    model = lively(config_of(kind))
    lay_out(model)
    for block in model.blocks:
        groups = products(block)
        own = {row.name for row in block.rows if row.name in ("v", "attn") and row.step.module}
        assert {row.name for group in groups for row in group} >= own >= ({"attn"} if mixer_of(block) else set())
        assert groups
        for rows in groups:
            parts = [row.module for row in rows]
            weight, bias = joined(rows)
            assert weight.data_ptr() == parts[0].weight.data_ptr()
            assert torch.equal(weight, torch.cat([part.weight for part in parts]))
            if parts[0].bias is None:
                assert bias is None
            else:
                assert bias.data_ptr() == parts[0].bias.data_ptr()
                assert torch.equal(bias, torch.cat([part.bias for part in parts]))
            with torch.no_grad():
                parts[-1].weight.mul_(2)  # a view sees what is changed later
            assert torch.equal(weight, torch.cat([part.weight for part in parts]))


def test_what_does_not_lie_side_by_side_is_joined_as_a_copy() -> None:
    model = lively(config_of("gpt2"))
    rows = products(model.blocks[0])[0][:2]
    parts = [row.module for row in rows]
    weight, bias = joined(rows)
    assert torch.equal(weight, torch.cat([part.weight for part in parts]))
    assert torch.equal(bias, torch.cat([part.bias for part in parts]))
    assert weight.data_ptr() != parts[0].weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head", BOTH_HEADS)
def test_a_second_time_moves_nothing_and_neither_does_a_stream(head: str, dtype: torch.dtype) -> None:
    model = lively(BOTH_HEADS[head]).to(dtype)
    lay_out(model)
    expected, rooms = places_of(model), len(model.rooms)
    lay_out(model)
    list(stream(model, [3, 17], max_tokens=3))
    assert places_of(model) == expected
    assert len(model.rooms) == rooms == model.config.n_layers + 1


def test_one_tensor_that_was_replaced_is_laid_side_by_side_again_and_nothing_else_moves() -> None:
    model = lively(config_of("llama, grouped"))
    lay_out(model)
    before = places_of(model)
    with torch.no_grad():
        new = torch.nn.Parameter(torch.randn(model.blocks[1].attention.k.weight.shape))
    model.blocks[1].attention.k.weight = new
    expected = values_of(model)
    lay_out(model)
    assert_values(model, expected)
    assert model.blocks[1].attention.k.weight is new
    q, k = model.blocks[1].attention.q.weight, model.blocks[1].attention.k.weight
    assert k.data_ptr() == q.data_ptr() + q.nbytes
    moved = {name for name, place in places_of(model).items() if place != before[name]}
    assert moved
    assert all(name.startswith("blocks.1.") for name in moved)
    assert len(model.rooms) == model.config.n_layers + 1  # the old one is let go


def test_another_dtype_is_laid_out_anew_and_the_old_memory_is_let_go() -> None:
    model = lively(config_of("gpt2"))
    lay_out(model)
    model.to(torch.float64)
    expected = values_of(model)
    lay_out(model)
    assert_values(model, expected)
    assert len(model.rooms) == model.config.n_layers + 1
    rooms = {address for address, _ in model.rooms}
    assert {weight.untyped_storage().data_ptr() for weight in model.blocks[0].ffn.parameters()} <= rooms
    weight, _ = joined(products(model.blocks[0])[0][:2])
    assert weight.data_ptr() == model.blocks[0].attention.q.weight.data_ptr()


@pytest.mark.parametrize("head", BOTH_HEADS)
def test_a_state_dict_is_saved_and_loaded(head: str, tmp_path) -> None:
    model, other = lively(BOTH_HEADS[head]), lively(BOTH_HEADS[head], seed=1)
    expected = values_of(model)
    lay_out(model)
    lay_out(other)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert_values(other, expected)
    assert_values(model, expected)
    with torch.no_grad():
        other.blocks[0].attention.q.weight.zero_()
    assert_values(model, expected)


@pytest.mark.parametrize("head", BOTH_HEADS)
def test_a_deep_copy_is_independent_and_decodes_the_same(head: str) -> None:
    model = lively(BOTH_HEADS[head])
    expected = values_of(model)
    tokens = [step.id for step in stream(model, [3, 17], max_tokens=9)]
    copied = copy.deepcopy(model)
    assert_values(copied, expected)
    assert [step.id for step in stream(copied, [3, 17], max_tokens=9)] == tokens
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1)
    assert_values(model, expected)
    assert [step.id for step in stream(model, [3, 17], max_tokens=9)] == tokens
    assert not set(places_of(model).values()) & set(places_of(copied).values())
    assert (copied.unembedding is copied.embed.tokens.weight) is model.config.tied_head


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(ASSETS / "tiny" / "tokenizer.json")


@pytest.mark.parametrize("head", BOTH_HEADS)
def test_a_run_and_an_export_hold_the_same_tensors_as_before(head: str, tokenizer: Tokenizer, tmp_path) -> None:
    config: ModelConfig = BOTH_HEADS[head]
    model = lively(config)
    save_run(tmp_path / "run before", model, tokenizer)
    export(model, tokenizer, tmp_path / "export before")
    expected = values_of(model)
    list(stream(model, [3, 17], max_tokens=3))
    save_run(tmp_path / "run after", model, tokenizer)
    export(model, tokenizer, tmp_path / "export after")
    for kind in ("run", "export"):
        before, after = (load_file(tmp_path / f"{kind} {when}" / "model.safetensors") for when in ("before", "after"))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert_values(load_run(tmp_path / "run after"), expected)


@pytest.mark.parametrize("kind", DECODERS)
def test_gradients_still_flow_to_every_parameter_and_are_the_same(kind: str) -> None:
    model, plain = lively(config_of(kind)), lively(config_of(kind))
    lay_out(model)
    ids = some_ids(model.config)
    for each in (model, plain):
        each(ids).square().mean().backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if name.startswith(("pooling.", "encoder.")) or ".index_" in name:  # no logit depends on it, or by a choice
            continue
        assert ours.grad is not None, name
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6), name


def test_an_optimiser_goes_on_with_a_model_that_was_laid_out_between_its_steps() -> None:
    model, plain = lively(config_of("llama, grouped")), lively(config_of("llama, grouped"))
    ids = some_ids(model.config)
    optimisers = [(each, torch.optim.AdamW(each.parameters(), lr=0.01)) for each in (model, plain)]
    for turn in range(3):
        for each, optimiser in optimisers:
            optimiser.zero_grad()
            each(ids).square().mean().backward()
            optimiser.step()
        if turn == 0:
            lay_out(model)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def resident(path: Path) -> int:
    """The KiB of a mapped file that are in memory."""
    lines = Path("/proc/self/smaps").read_text("utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith(str(path))]
    return sum(int(lines[start + 4].removeprefix("Rss:").split()[0]) for start in starts)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_what_was_moved_is_not_in_memory_once_more_as_pages_of_its_file(tmp_path):
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 300}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=4)).save_pretrained(tmp_path)
    opened = read_directory(tmp_path).load().transformer
    (file,) = opened.mapped
    expected = values_of(opened)  # which reads every page
    before = resident(file.path)
    lay_out(opened)
    assert resident(file.path) < before / 5
    assert_values(opened, expected)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_pages_that_were_let_go_hold_what_was_written_to_them(tmp_path, written):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(2**20))
    numbers = torch.from_file(str(path), size=2**20, dtype=torch.uint8)  # mapped, private
    numbers.sum()
    if written:
        numbers[5000] = 7
    assert resident(path) >= 1024
    page_out([path])
    assert written or resident(path) == 0
    assert numbers.sum() == 7 * written
