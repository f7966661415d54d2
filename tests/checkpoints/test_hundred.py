"""The models that docs/models.md lists: a small folder of each kind, as it is published, does what the page says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import checkpoint_directories
import directories
import piece_files
import pytest
import registry
import test_sentence_folders as sentence_folders
import torch
import transformers
import whole_models
from gguf_conversion import CONVERSIONS, converted
from gguf_files import model_and_parts
from safetensors.torch import load_file, save_file
from test_mxfp4 import in_mxfp4
from test_quantized import quantise
from torch import nn

import tinytf
from tinytf.errors import TinytfError
from tinytf.through.model import open_through

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "WordPiece": directories.bert_json,
    "WordPiece of MPNet": directories.mpnet,
    "`vocab.txt`": directories.bert_uncased,
    "words of ESM": directories.esm,
    "Unigram of XLM-R": directories.xlm_roberta,
    "Unigram of ALBERT": directories.albert,
    "Unigram of CamemBERT": directories.camembert,
    "Unigram of DeBERTa": directories.deberta_v3,
    "byte BPE of GPT-2": directories.gpt2_json,
    "byte BPE of GPT-NeoX": directories.gpt_neox,
    "byte BPE of RoBERTa": directories.roberta_json,
    "`merges.txt` of RoBERTa": directories.roberta_files,
    "`merges.txt` of OPT": directories.opt_files,
    "byte BPE of Llama 3": directories.llama3,
    "byte BPE of Qwen": directories.qwen2,
    "BPE of Llama 2": directories.llama,
    "BPE of Mistral": directories.mistral,
    "BPE of Gemma": directories.gemma,
    "`spm.model` of DeBERTa": piece_files.PIECE_LAYOUTS["deberta_v3_pieces"],
    "Unigram of T5": piece_files.PIECE_LAYOUTS["t5_pieces_saved"],
    "`source.spm` of Marian": piece_files.marian,
}
"""Who writes a tokenizer that the page calls by this name; of any other, a file of that name is there and unread."""
QUANTISED = {
    "AWQ": "awq",
    "GPTQ": "gptq",
    "FP8": "fp8 in blocks",
    "compressed-tensors": "compressed-tensors",
    "MLX": "mlx",
    "nf4": "nf4",
}
WHOLE = dict(whole_models.registered())


class Row(NamedTuple):
    """A line of the page."""

    name: str
    type: str
    model_class: str
    tokenizer: str
    files: str
    opens: str


def rows() -> list[Row]:
    table = PAGE.read_text("utf-8").partition("<!-- hundred -->")[2].partition("<!-- /hundred -->")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return [Row(name, kind.strip("`"), model.strip("`"), *rest) for name, kind, model, *rest in lines]


ROWS = rows()
KINDS = {row[1:]: row for row in reversed(ROWS)}
"""One row of each type, class, tokenizer and files."""


def build(row: Row) -> nn.Module:
    """A small model of a row's class."""
    if row.model_class in WHOLE.values():
        return whole_models.build(row.type, row.model_class)
    kind = getattr(transformers, row.model_class).config_class.model_type
    of_blocks = row.files.split(",")[0] in (*QUANTISED, "MXFP4")
    sizes = {"hidden_size": 32, "intermediate_size": 64} if of_blocks else {}
    return registry.model_of(kind, row.model_class, vocab_size=1300, **sizes)


def further(files: str, layers: int) -> dict[str, Any]:
    """The tensors beside the model that the page tells of."""
    names = {"`mtp`": "mtp.norm.weight", "a further layer": f"model.layers.{layers}.input_layernorm.weight"}
    return {name: torch.ones(8) for word, name in names.items() if word in files}


def publish(row: Row, folder: Path) -> Path:
    """What is downloaded of a row, small."""
    if row.files == "GGUF":
        parts = (converted(CONVERSIONS[row.type]) if row.type in CONVERSIONS else model_and_parts(row.type))[1]
        return parts.write(folder / "model.gguf")
    if row.tokenizer in TOKENIZERS:
        TOKENIZERS[row.tokenizer](folder)
    else:
        (folder / row.tokenizer.strip("`")).write_bytes(b"\n")
    model = build(row)
    text = model.config.get_text_config()
    model.save_pretrained(folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    data = {**json.loads(config.read_text("utf-8")), "model_type": row.type}
    tensors = load_file(weights) | further(row.files, text.num_hidden_layers)
    first, *_ = row.files.split(",")
    if first in QUANTISED:
        data, tensors = quantise(QUANTISED[first], data, tensors)[:2]
    if first == "MXFP4":
        data, tensors = in_mxfp4(data, tensors)
    config.write_text(json.dumps(data), "utf-8")
    weights.unlink()
    if first == "shards":
        checkpoint_directories.shard(folder, tensors)
    elif "`.bin`" in row.files:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, weights)
    if first == "sentence-transformers":
        pooling = {"embedding_dimension": text.hidden_size, "pooling_mode": "mean"}
        folder = sentence_folders.write(folder.parent, folder, ("Pooling", pooling))
    return folder


@torch.no_grad()
@pytest.mark.share(16)
@pytest.mark.parametrize("row", KINDS.values(), ids=lambda row: row.name)
def test_the_page_says_how_each_kind_opens(row: Row, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    published = str(publish(row, tmp_path / "files"))
    if row.opens in ("table", "GGUF"):
        model = tinytf.load(published)
        if width := model.config.d_source:
            model = model.reading("Mary had a lamb." if model.config.encoder is not None else torch.randn(5, width))
        assert model.transformer(torch.arange(9)[None]).isfinite().all()
        assert model.tokenizer.encode("Mary had a little lamb.").ids
        assert not [note for note in model.notes if "does not know" in note]
        assert ("layers that predict" in str(model.notes)) == bool(further(row.files, 1))
        return
    with pytest.raises(TinytfError) as refusal:
        tinytf.load(published)
    if "is not one that tinytf opens" in str(refusal.value) and row.opens.startswith("through transformers"):
        tokenizer = open_through(published).tokenizer
        assert (tokenizer.kind == "ids") == row.opens.endswith("texts as ids")
        return
    if "is not one that tinytf opens" in str(refusal.value):
        with pytest.raises(TinytfError) as refusal:
            open_through(published)
    assert row.opens.split("`")[1] in str(refusal.value)


def test_the_page_lists_a_hundred_and_counts_those_that_open() -> None:
    opens = [row.opens for row in ROWS]
    through = sum(way.startswith("through transformers") for way in opens)
    here = opens.count("table") + opens.count("GGUF")
    assert len({row.name for row in ROWS}) == len(ROWS) == 100
    assert here + through >= 90
    more = f" and {through} more through transformers" * (through > 0)
    assert f"{here} open by a table or as GGUF{more}," in PAGE.read_text("utf-8")
