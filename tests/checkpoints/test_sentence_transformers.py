"""Embedding models as sentence-transformers saves them: vectors and scores are those that it computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers.processors import BertProcessing

import tinytf
from tinytf.sources import ASSETS
from tinytf.text.chat import TextPair

pytestmark = pytest.mark.slow

SHORT, LONG = "The dog lost a ball.", "The cat sat on the mat, and the dog sat on the cat. " * 7
WORDS: dict[str, Any] = {
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
}
SIZES: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 2048,
}  # fmt: skip
Library = Callable[[Path], Any]


@pytest.fixture(scope="module")
def library() -> Library:
    """Opens a folder with the class of sentence-transformers that it is for."""
    sentence_transformers = pytest.importorskip("sentence_transformers")

    def open_folder(folder: Path, kind: str = "SentenceTransformer") -> Any:
        return getattr(sentence_transformers, kind)(str(folder), device="cpu")

    return open_folder


def save(folder: Path, model: transformers.PreTrainedModel, most: int | None = None) -> Path:
    """Save a model with larger weights than it was drawn with, and a WordPiece tokenizer of ``most`` tokens."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)
    words = str(ASSETS / "tiny-encoder" / "tokenizer.json")
    long = {} if most is None else {"model_max_length": most}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=words, **WORDS, **long)
    tokenizer.backend_tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save_pretrained(folder)
    return folder


def bert(**settings: Any) -> transformers.PreTrainedModel:
    return transformers.BertModel(transformers.BertConfig(**SIZES, max_position_embeddings=64, **settings))


def modules(folder: Path, *kinds: str, **transformer: Any) -> None:
    """Write modules.json and what the modules in it need, but for weights."""
    entries = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(("Transformer", *kinds))
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "sentence_bert_config.json").write_text(json.dumps(transformer))
    for entry in entries[1:]:
        (folder / entry["path"]).mkdir()
    if "Pooling" in kinds:
        pooling = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
        (folder / f"{kinds.index('Pooling') + 1}_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(("most", "longest"), [(12, None), (None, 9), (12, 9), (None, None), (500, None)])
def test_a_text_is_cut_where_the_library_cuts_it(
    tmp_path: Path, library: Library, most: int | None, longest: int | None
) -> None:
    folder = save(tmp_path, bert(), longest)
    modules(folder, "Pooling", **({} if most is None else {"max_seq_length": most}))
    limit = most or longest or 64
    model, their = tinytf.load(folder), library(folder)
    if limit > 64:  # the library would run beyond the positions
        their.max_seq_length = limit = 64
    expected = torch.from_numpy(their.encode([LONG, SHORT]))
    for text, vector in zip((LONG, SHORT), expected, strict=True):
        assert torch.allclose(model.trace(text)["pooled"], vector, atol=1e-6)
    assert model.similar(LONG, SHORT).cosine == pytest.approx(float(their.similarity(*expected[:, None])), abs=1e-6)
    near = model.most_similar(SHORT, [LONG])
    assert near.nearest[0].cosine == pytest.approx(float(their.similarity(*expected[:, None])), abs=1e-6)
    assert near.note.endswith(f"; 1 of the texts cut to {limit} tokens")
    assert model.similar(SHORT, LONG).note.endswith(f"cut from the end, beyond {limit}, of the second text")
    trace = model.trace(LONG)
    assert len(trace.tokens) == limit
    assert trace.tokens[-1].shown == "[SEP]"
    assert trace.encoding.added.endswith(f"tokens cut from the end, beyond {limit}")


@pytest.mark.parametrize("texts", [(LONG, SHORT), (SHORT, LONG), (LONG, LONG[:60])])
@pytest.mark.parametrize("limit", [9, 20])
def test_a_pair_is_cut_where_the_library_cuts_it(
    tmp_path: Path, library: Any, texts: tuple[str, str], limit: int
) -> None:
    config = transformers.BertConfig(**SIZES, max_position_embeddings=limit, num_labels=1)
    folder = save(tmp_path, transformers.BertForSequenceClassification(config))
    (expected,) = library(folder, "CrossEncoder").predict([texts], activation_fn=torch.nn.Identity())
    pair = TextPair(*texts)
    assert float(tinytf.load(folder).trace(pair, truncate=True)["logits"][0, 0]) == pytest.approx(expected, abs=1e-5)
