"""The language of a target is the one that stands in its text; that of a source is the tokenizer's."""

from collections.abc import Callable
from pathlib import Path

import piece_files
import pytest
import torch
import transformers

import tinytf
from tinytf.errors import CheckpointError
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


def test_two_vocabularies_are_refused_by_name_and_their_model_takes_ids(tmp_path: Path) -> None:
    sizes = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "encoder_layers", "decoder_layers"), 2)
    config = transformers.FSMTConfig(
        **sizes, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, src_vocab_size=40, tgt_vocab_size=30
    )
    model = transformers.FSMTForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab-src.json").write_text("{}", "utf-8")
    with pytest.raises(CheckpointError, match="the rules of Moses"):
        tinytf.load(str(tmp_path))
    assert tinytf.load(model).reading("39 4 2").trace("5 7").encoding.ids == [2, 5, 7]
