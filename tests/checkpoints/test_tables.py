"""What a table can say of a layout, whichever family has it: both ways, and against the modules that store it so."""

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from architectures import config_of, lively
from gguf_files import Kind, model_and_parts
from safetensors.torch import load_file, save_file
from transformers import RoFormerConfig, RoFormerForMaskedLM
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

from tinytf.checkpoints.gguf import read_gguf
from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.checkpoints.huggingface import export as export_room
from tinytf.checkpoints.huggingface import load
from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.gpt2 import GPT2
from tinytf.checkpoints.huggingface.load import FAMILIES, read_directory
from tinytf.checkpoints.table import Key, Stored, fused
from tinytf.errors import CheckpointError
from tinytf.sources import ASSETS
from tinytf.text.tokenizer import Tokenizer

CONFIG = config_of("gpt2")  # 4 heads of 6
GROUPED = config_of("gpt2", n_kv_heads=2)
HEADS, WIDTH = CONFIG.n_heads, CONFIG.d_head
IDS = torch.tensor([[5, 3, 9, 30, 7, 7, 11]])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def test_queries_keys_and_values_that_lie_head_by_head_are_those_that_gpt_neox_takes_apart():
    weight, bias, x = random(3 * HEADS * WIDTH, 24), random(3 * HEADS * WIDTH), random(5, 24)
    theirs = F.linear(x, weight, bias).view(5, HEADS, 3 * WIDTH).chunk(3, dim=-1)  # modeling_gpt_neox.py
    for how, expected in zip(fused("qkv", by_head="n_heads").values(), theirs, strict=True):
        ours = F.linear(x, how.read(weight, CONFIG), how.read(bias, CONFIG))
        assert torch.allclose(ours.view(5, HEADS, WIDTH), expected, atol=1e-6)


def test_queries_keys_and_values_of_shared_heads_are_those_that_falcon_takes_apart():
    weight, bias, x = random((HEADS + 4) * WIDTH, 24), random((HEADS + 4) * WIDTH), random(5, 24)
    groups = F.linear(x, weight, bias).view(5, 2, HEADS // 2 + 2, WIDTH)  # modeling_falcon.py
    theirs = groups[:, :, :-2].flatten(1, 2), groups[:, :, -2], groups[:, :, -1]
    for how, expected in zip(fused("qkv", by_head="n_kv_heads").values(), theirs, strict=True):
        ours = F.linear(x, how.read(weight, GROUPED), how.read(bias, GROUPED))
        assert torch.allclose(ours.view(expected.shape), expected, atol=1e-6)


LAYOUTS = {
    "one behind the other": fused("qkv"),
    "one behind the other, (in, out)": fused("qkv", transposed=True),
    "head by head": fused("qkv", by_head="n_heads"),
    "head by head, (in, out)": fused("qkv", by_head="n_heads", transposed=True),
    "head by head, short of ours": fused("qkv", by_head="n_heads", offset=2.0),
    "head by head of a shared key": fused("qkv", by_head="n_kv_heads"),
    "pairs side by side": {"q": Stored("q", paired="n_heads")},
    "head by head, pairs side by side": fused("qkv", by_head="n_heads", paired="n_heads"),
}
SHARED = ("one behind the other", "one behind the other, (in, out)", "head by head of a shared key")


@pytest.mark.parametrize("kind", ["weight", "bias"])
@pytest.mark.parametrize(
    ("config", "layout"), [*((CONFIG, one) for one in LAYOUTS), *((GROUPED, one) for one in SHARED)]
)
def test_what_is_taken_apart_is_put_together_again(layout, kind, config):
    hows = list(LAYOUTS[layout].values())
    heads = [config.n_heads, config.n_kv_heads, config.n_kv_heads][: len(hows)]
    ours = [(count * WIDTH, 24) if kind == "weight" else (count * WIDTH,) for count in heads]
    stored = (random(*hows[0].stored_shape(ours[0], config)) * 64).round()  # whole numbers: no offset rounds them
    pieces = [how.read(stored, config) for how in hows]
    assert [tuple(piece.shape) for piece in pieces] == ours
    laid = [how.laid(piece, config) for how, piece in zip(hows, pieces, strict=True)]
    assert torch.equal(hows[0].write(laid, config), stored)


def test_what_needs_no_order_undone_is_a_view_of_what_is_stored():
    stored = random(24, 72)
    for how in fused("qkv", transposed=True).values():
        assert how.read(stored, CONFIG).untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()


def test_a_norm_that_is_stored_short_of_1_is_gemmas():
    theirs = Gemma2RMSNorm(24, eps=1e-6)
    theirs.weight.data = random(24)
    x, how = random(5, 24), Stored("norm", offset=1.0)
    ours = F.rms_norm(x, (24,), how.read(theirs.weight.data, CONFIG), eps=1e-6)
    assert torch.allclose(ours, theirs(x), atol=1e-6)


def test_an_offset_is_that_of_weights_and_not_of_biases():
    table = replace(GPT2, stored={**GPT2.stored, "final_norm": Stored("ln_f", offset=1.0)})
    assert table.place("final_norm.weight") == ("ln_f.weight", Stored("ln_f", offset=1.0))
    assert table.place("final_norm.bias") == ("ln_f.bias", Stored("ln_f"))


MADE_UP = replace(
    GPT2,
    name="Made-up",
    model_type="made_up",
    stored={
        **GPT2.stored,
        **fused("h.{n}.attn.query_key_value", by_head="n_heads"),
        "blocks.{n}.norm1": Stored("h.{n}.ln_1", offset=1.0),
        "final_norm": Stored("ln_f", offset=1.0),
    },
    harmless=("sauce",),
)


def test_a_family_of_such_layouts_is_written_and_opened_to_the_last_bit(tmp_path, monkeypatch):
    once, twice = tmp_path / "once", tmp_path / "twice"
    monkeypatch.setitem(FAMILIES, "made_up", MADE_UP)
    monkeypatch.setattr(export_room, "TABLES", (MADE_UP,))
    model = lively(CONFIG)
    assert export(model, Tokenizer.load(ASSETS / "tiny" / "tokenizer.json"), once).family == "Made-up"
    stored = load_file(once / "model.safetensors")
    qkv = stored["transformer.h.1.attn.query_key_value.weight"].view(HEADS, 3, WIDTH, 24)
    key = model.state_dict()["blocks.1.attention.k.weight"].view(HEADS, WIDTH, 24)
    assert torch.equal(qkv[2, 1], key[2]), "of head 2 the key lies between query and value"
    settings = json.loads((once / "config.json").read_text("utf-8"))
    (once / "config.json").write_text(json.dumps({**settings, "sauce": 1}), "utf-8")
    again = read_directory(once).load()
    assert again.notes == ()
    with torch.no_grad():
        assert torch.allclose(again.transformer(IDS), model(IDS), atol=1e-6), "1 + (w − 1) rounds once"
    export(again.transformer, Tokenizer.load(ASSETS / "tiny" / "tokenizer.json"), twice)
    again_stored = load_file(twice / "model.safetensors")
    assert all(torch.equal(again_stored[name], tensor) for name, tensor in stored.items()), "and then no more"


@pytest.mark.parametrize("by_head", ["", "n_heads"])
def test_a_gguf_file_may_hold_queries_keys_and_values_as_one(tmp_path, monkeypatch, by_head):
    _, parts = model_and_parts("qwen2", num_key_value_heads=4)
    plain = read_gguf(parts.write(tmp_path / "plain.gguf")).load(torch.float32).transformer
    for n in range(2):
        for kind in ("weight", "bias"):
            three = [parts.tensors.pop(f"blk.{n}.attn_{name}.{kind}")[0] for name in "qkv"]
            heads = [one.reshape(4, -1, *one.shape[1:]) for one in three]
            joined = (
                np.concatenate(heads, axis=1).reshape(-1, *three[0].shape[1:]) if by_head else np.concatenate(three)
            )
            parts.tensors[f"blk.{n}.attn_qkv.{kind}"] = joined, Kind.F32
    table = ARCHITECTURES["qwen2"]
    stored = {**table.stored, **fused("blk.{n}.attn_qkv", by_head=by_head)}
    settings = (*table.settings, Key("qkv_bias", "qkv_bias", True))
    monkeypatch.setitem(ARCHITECTURES, "qwen2", replace(table, stored=stored, settings=settings))
    joint = read_gguf(parts.write(tmp_path / "joint.gguf")).load(torch.float32).transformer
    assert all(torch.equal(a, b) for a, b in zip(joint.parameters(), plain.parameters(), strict=True))


def test_no_family_is_listed_twice() -> None:
    listed = re.search(r"for family in \((.*?)\)\n\}", inspect.getsource(load), re.DOTALL)
    assert listed is not None
    names = re.findall(r"[A-Z][A-Z0-9_]+", listed[1])
    assert len(names) == len(set(names)) > 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_stored_rotary_table_of_roformer_is_the_one_that_is_computed(tmp_path: Path, dtype: torch.dtype) -> None:
    theirs = RoFormerForMaskedLM(
        RoFormerConfig(vocab_size=50, hidden_size=16, embedding_size=16, num_hidden_layers=1, num_attention_heads=2,
                       intermediate_size=16, max_position_embeddings=1536)
    )  # fmt: skip
    theirs.to(dtype).save_pretrained(tmp_path)
    path, name = tmp_path / "model.safetensors", "roformer.encoder.embed_positions.weight"
    stored = load_file(path)
    assert stored[name].dtype == dtype
    read_directory(tmp_path).load()
    stored[name][3, 1] += 0.01 if dtype == torch.float32 else 0.1
    save_file(stored, path, {"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"embed_positions\.weight differs from the table that the configuration gives"
    ):
        read_directory(tmp_path).load()
