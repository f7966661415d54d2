"""The language of a target is the one that stands in its text; that of a source is the tokenizer's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import piece_files
import pytest
import torch
import transformers

import tinytf
from tinytf.errors import TokenizerError
from tinytf.files import to_json

KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "NLLB": (piece_files.PIECE_LAYOUTS["nllb_pieces"], "deu_Latn"),
    "mBART-50": (piece_files.PIECE_LAYOUTS["mbart50_pieces"], "de_DE"),
    "M2M-100": (piece_files.m2m_100, "__de__"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_target_begins_with_its_own_language(name: str, tmp_path: Path) -> None:
    make, code = KINDS[name]
    make(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "config.json"}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    sizes = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "encoder_layers", "decoder_layers"), 2)
    config = transformers.M2M100Config(
        **sizes, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        vocab_size=1200, decoder_start_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    for path, data in files.items():
        path.write_bytes(data)
    ours = tinytf.load(str(tmp_path)).reading("Mary had a lamb.")
    read = theirs("Mary had a lamb.", return_tensors="pt")
    assert ours.transformer.reads is not None
    assert ours.transformer.reads.trace.encoding.ids == read.input_ids[0].tolist()
    bare = theirs("Its fleece was white", add_special_tokens=False).input_ids
    ids = [2, theirs.convert_tokens_to_ids(code), *bare]
    space = "" if name == "M2M-100" else " "  # its pieces begin with a space of their own
    assert ours.encode(f"{code}{space}Its fleece was white").ids == ids
    assert ours.encode(code).ids == ids[:2]
    with torch.no_grad():
        logits = model(**read, decoder_input_ids=torch.tensor([ids])).logits[0]
        assert torch.allclose(ours.transformer(torch.tensor([ids]))[0], logits, atol=1e-5)
    (tmp_path / "generation_config.json").write_bytes(to_json({"forced_bos_token_id": ids[1]}))
    forced = tinytf.load(str(tmp_path)).reading("Mary had a lamb.")
    assert forced.prompt("").ids == ids[:2]
    assert forced.target_begins == code
    assert ours.prompt("").ids == ids[:1]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@torch.no_grad()
def test_a_marian_of_two_vocabularies_reads_one_and_writes_the_other(tmp_path: Path) -> None:
    piece_files.marian_of_two_vocabularies(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "config.json"}
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    sizes = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "encoder_layers", "decoder_layers"), 2)
    counts = {"vocab_size": len(theirs.encoder), "decoder_vocab_size": len(theirs.target_encoder)}
    config = transformers.MarianConfig(
        **sizes, **counts, share_encoder_decoder_embeddings=False, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_position_embeddings=64, decoder_start_token_id=2, pad_token_id=2, eos_token_id=0, forced_eos_token_id=None,
        init_std=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config).eval()
    model.save_pretrained(tmp_path)
    for path, data in files.items():
        path.write_bytes(data)
    read = theirs("Mary had a lamb.", text_target="Its fleece was white", return_tensors="pt")
    ours = tinytf.load(str(tmp_path)).reading("Mary had a lamb.")
    assert ours.transformer.reads is not None
    assert ours.transformer.reads.trace.encoding.ids == read.input_ids[0].tolist()
    target = [2, *read.labels[0, :-1].tolist()]
    assert ours.encode("Its fleece was white").ids == target
    logits = model(**{**read, "labels": None}, decoder_input_ids=torch.tensor([target])).logits[0]
    assert torch.allclose(ours.transformer(torch.tensor([target]))[0], logits, atol=1e-5)
    written = model.generate(**{**read, "labels": None}, max_new_tokens=8, do_sample=False)[0]
    assert ours.generate("", max_tokens=8) == theirs.decode(written, skip_special_tokens=True)
    assert tinytf.load(str(tmp_path)).heads(count=2).across is not None  # on ids that both vocabularies have


def test_a_model_whose_words_the_rules_of_moses_cut_takes_ids(tmp_path: Path) -> None:
    sizes = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "encoder_layers", "decoder_layers"), 2)
    config = transformers.FSMTConfig(
        **sizes, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, src_vocab_size=40, tgt_vocab_size=30
    )
    model = transformers.FSMTForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab-src.json").write_text("{}", "utf-8")
    for ours in (tinytf.load(model), tinytf.load(str(tmp_path))):
        assert ours.reading("39 4 2").trace("5 7").encoding.ids == [2, 5, 7]
    for bound in (ours.encoder, ours):
        words = f"'the' is not an id below {bound.tokenizer.vocab_size}, and the rules of Moses"
        with pytest.raises(TokenizerError, match=words):
            bound.encode("the cat")


EXPORTED: dict[str, tuple[Callable[[Path], None], str, dict[str, int]]] = {
    "Marian": (piece_files.marian, "Marian", {"decoder_start_token_id": 2, "pad_token_id": 2, "eos_token_id": 0}),
    "Marian of two vocabularies": (
        piece_files.marian_of_two_vocabularies,
        "Marian",
        {"decoder_start_token_id": 2, "pad_token_id": 2, "eos_token_id": 0},
    ),
    "M2M-100": (piece_files.m2m_100, "M2M100", {"decoder_start_token_id": 2}),
}
LINES = ("Mary had a lamb.", ">>fra<< Its  fleece\twas white", "", " 12é日本 ﬁ", "</s> went")


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("name", EXPORTED)
@torch.no_grad()
def test_an_exported_folder_has_the_ids_and_the_logits_of_the_first(name: str, tmp_path: Path) -> None:
    make, family, ids = EXPORTED[name]
    (first := tmp_path / "first").mkdir()
    make(first)
    files = {path: path.read_bytes() for path in first.iterdir() if path.name != "config.json"}
    theirs = transformers.AutoTokenizer.from_pretrained(first)
    sizes = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "encoder_layers", "decoder_layers"), 2)
    counts: dict[str, Any] = {"vocab_size": 1200 if name == "M2M-100" else len(theirs)}
    if name == "Marian of two vocabularies":
        counts = {"vocab_size": len(theirs.encoder), "decoder_vocab_size": len(theirs.target_encoder)}
        counts["share_encoder_decoder_embeddings"] = False
    config = getattr(transformers, f"{family}Config")(
        **sizes, **counts, **ids, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    model.save_pretrained(first)
    for path, data in files.items():
        path.write_bytes(data)
    tinytf.load(str(first)).export(tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert type(again) is type(theirs)
    for line in LINES:
        pair = {} if name == "M2M-100" else {"text_target": line}  # whose targets need a language
        assert again(line, **pair) == theirs(line, **pair)
    reopened, report = type(model).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not report["missing_keys"] | report["unexpected_keys"]
    read, target = theirs(LINES[0], return_tensors="pt"), torch.tensor([[2, 5, 7, 4]])
    logits = [one.eval()(**read, decoder_input_ids=target).logits for one in (model, reopened)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
    bound = tinytf.load(str(tmp_path / "again")).reading(LINES[0])
    torch.testing.assert_close(bound.transformer(target), logits[0], rtol=1e-5, atol=1e-5)
    assert bound.encode(LINES[3]).ids == tinytf.load(str(first)).encode(LINES[3]).ids
