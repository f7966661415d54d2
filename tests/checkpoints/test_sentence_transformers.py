"""Embedding models as sentence-transformers saves them: vectors and scores are those that it computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
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
    "mask_token": "[MASK]",
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


RERANKER = """{%- set instruct = messages | selectattr("role", "eq", "system") | map(attribute="content") | first -%}
{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}
[CLS] answer no or yes . {{ instruct | default("was it so ?", true) }} query : {{ query }} document : {{ document }}[SEP] so :{% if add_generation_prompt %} [CLS]{% endif %}"""  # noqa: E501


def reranker(folder: Path, *, tied: bool, tokens: dict[str, int | None], prompt: str | None, generation: bool) -> Path:
    """A folder in the layout of Qwen3-Reranker: a decoder, LogitScore, and a chat template of query and document."""
    sizes = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 6}
    config = transformers.Qwen3Config(**sizes, tie_word_embeddings=tied)
    save(folder, transformers.Qwen3ForCausalLM(config), 60)
    (folder / "chat_template.jinja").write_text(RERANKER)
    logits = {"method": "forward", "method_output_name": "logits"}
    modules(
        folder, "LogitScore", transformer_task="text-generation", module_output_name="causal_logits",
        modality_config={"text": logits, "message": {**logits, "format": "flat"}},
        processing_kwargs={"chat_template": {"add_generation_prompt": generation}},
    )  # fmt: skip
    entries = json.loads((folder / "modules.json").read_text())
    entries[0]["type"] = "sentence_transformers.base.modules.transformer.Transformer"
    entries[1]["type"] = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(tokens))
    said = {"model_type": "CrossEncoder", "prompts": {} if prompt is None else {"ask": prompt},
            "default_prompt_name": None if prompt is None else "ask",
            "activation_fn": "torch.nn.modules.linear.Identity"}  # fmt: skip
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize(
    ("tied", "false", "prompt", "generation", "document"),
    [
        (True, 70, None, False, SHORT),
        (False, 70, "is it about the cat ?", True, SHORT),
        (True, None, None, True, SHORT),
        (True, 70, "is it about the cat ?", False, LONG),
    ],
)
def test_a_decoder_scores_a_pair_by_its_logits_of_two_tokens(
    tmp_path: Path, library: Any, tied: bool, false: int | None, prompt: str | None, generation: bool, document: str
) -> None:
    tokens = {"true_token_id": 90, "false_token_id": false}
    folder = reranker(tmp_path, tied=tied, tokens=tokens, prompt=prompt, generation=generation)
    pair = ("Who sat on the mat?", document)
    (expected,) = library(folder, "CrossEncoder").predict([pair])
    trace = tinytf.load(folder).trace(TextPair(*pair))
    relevant, *others = trace["logits"][-1].tolist()
    assert relevant - sum(others) == pytest.approx(expected, abs=1e-5)
    if others:
        assert float(trace["probs"][-1, 0]) == pytest.approx(1 / (1 + torch.tensor(-expected).exp().item()), abs=1e-6)
        with torch.no_grad():
            decoder = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
            logits = decoder(torch.tensor([trace.encoding.ids])).logits[0, -1, [90, 70]]
        assert trace["logits"][-1].tolist() == pytest.approx(logits.tolist(), abs=1e-5)


def test_embedding_gemma_is_read_with_its_windows_dense_layers_and_prompts(tmp_path: Path, library: Any) -> None:
    config = transformers.Gemma3TextConfig(
        **SIZES, num_key_value_heads=2, head_dim=6, max_position_embeddings=128, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=6, use_bidirectional_attention=True,
    )  # fmt: skip
    folder = save(tmp_path, transformers.Gemma3TextModel(config))
    modules(folder, "Pooling", "Dense", "Dense", "Normalize", max_seq_length=40)
    for path, (before, after) in {"2_Dense": (24, 50), "3_Dense": (50, 24)}.items():
        identity = "torch.nn.modules.linear.Identity"
        said = {"in_features": before, "out_features": after, "bias": False, "activation_function": identity}
        (folder / path / "config.json").write_text(json.dumps(said))
        save_file({"linear.weight": torch.randn(after, before)}, folder / path / "model.safetensors")
    prompts = {"query": "task : search | query : ", "document": "title : none | text : "}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    model, their = tinytf.load(folder), library(folder)
    documents = [SHORT, LONG, "The dog was loud."]
    query = "Who lost a ball?"
    expected = their.similarity(their.encode_query([query]), their.encode_document(documents))[0].tolist()
    near = model.most_similar(query, documents).nearest
    assert {one.number: one.cosine for one in near} == pytest.approx(dict(enumerate(expected, 1)), abs=1e-6)
    vectors = torch.from_numpy(their.encode(documents))
    for text, vector in zip(documents, vectors, strict=True):
        assert torch.allclose(model.trace(text)["embedding"], vector, atol=1e-6)
    assert model.similar(SHORT, query).check.holds


def colbert(folder: Path, **metadata: Any) -> Path:
    """A folder as ColBERT itself writes it: the projection beside the encoder, and artifact.metadata."""
    save(folder, bert())
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**weights, "linear.weight": torch.randn(16, 24)}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def pylate(folder: Path, **settings: Any) -> Path:
    """A folder as PyLate writes it: a dense layer on every token, and lengths and markers in one file."""
    save(folder, bert())
    modules(folder, "Dense")
    dense = {"in_features": 24, "out_features": 16, "bias": False, "use_residual": False,
             "activation_function": "torch.nn.modules.linear.Identity"}  # fmt: skip
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": torch.randn(16, 24)}, folder / "1_Dense" / "model.safetensors")
    entries = json.loads((folder / "modules.json").read_text())
    entries[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(entries))
    said = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", **settings}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    return folder


LATE: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "colbert": (colbert, {"query_token_id": "was", "doc_token_id": "so", "doc_maxlen": 30, "query_maxlen": 20}),
    "colbert that looks at masks": (colbert, {"query_token_id": "was", "doc_token_id": "so", "query_maxlen": 20,
                                              "attend_to_mask_tokens": True, "mask_punctuation": False}),
    "pylate": (pylate, {"query_prefix": "was ", "document_prefix": "so ", "query_length": 12, "document_length": 30}),
    "pylate without expansion": (pylate, {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12,
                                          "document_length": 30, "do_query_expansion": False, "skiplist_words": [","]}),
}  # fmt: skip


@pytest.mark.parametrize("kind", LATE)
def test_each_token_of_a_query_finds_the_token_that_the_library_finds(tmp_path: Path, library: Any, kind: str) -> None:
    make, settings = LATE[kind]
    folder = make(tmp_path, **settings)
    model, their = tinytf.load(folder), library(folder, "MultiVectorEncoder")
    query, documents = "Who lost the ball, and where?", [SHORT, LONG, "The dog was loud."]
    (vectors,) = their.encode_query([query])
    of_documents = their.encode_document(documents)
    expected = their.similarity([vectors], of_documents)[0].tolist()
    for document, score in zip(documents, expected, strict=True):
        report = model.interaction(query, document)
        assert report.score == pytest.approx(score, abs=1e-5)
        assert len(report.finds) == len(vectors)
    near = model.most_similar(query, documents).nearest
    scores = {one.number: one.cosine * len(vectors) for one in near}
    assert scores == pytest.approx(dict(enumerate(expected, 1)), abs=1e-5)
    best = (torch.as_tensor(vectors) @ torch.as_tensor(of_documents[2]).T).max(1).values.tolist()
    assert [find.cosine for find in model.interaction(query, documents[2]).finds] == pytest.approx(best, abs=1e-6)
    assert model.similar(query, SHORT, pooling="mean").cosine <= 1
    their.save_pretrained(str(tmp_path / "again"))  # with modules of its own, among them a MultiVectorMask
    again = tinytf.load(tmp_path / "again")
    for document, score in zip(documents, expected, strict=True):
        assert again.interaction(query, document).score == pytest.approx(score, abs=1e-5)
