"""The tokenizer of ESM: a vocabulary of residues, each cut out of the text, as transformers reads it."""

import pytest
import transformers

from tinytf.text.huggingface import load_tokenizer_directory

RESIDUES = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("esm")
    (folder / "vocab.txt").write_text("\n".join(RESIDUES), "utf-8")
    (folder / "config.json").write_text('{"model_type": "esm"}', "utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}', "utf-8")
    return folder


@pytest.mark.parametrize(
    "text", ["MKTAYIAKQR", "M K <mask> A", "mkt JJK", "A<mask>L", "M.K-", "", "AB<cls>\nK  L<null_1>", "é M"]
)
def test_residues_are_cut_as_transformers_cuts_them(directory, text):
    theirs = transformers.EsmTokenizer.from_pretrained(directory)
    assert load_tokenizer_directory(directory).tokenizer.encode(text).ids == theirs(text)["input_ids"]


def test_the_mask_is_the_token_that_a_model_fills(directory):
    tokenizer = load_tokenizer_directory(directory).tokenizer
    assert tokenizer.mask_id == RESIDUES.index("<mask>")
    assert tokenizer.special_ids == {0, 1, 2, 3, RESIDUES.index("<mask>")}


def test_what_is_no_residue_is_one_unknown_token_where_it_stands(directory):
    tokens = load_tokenizer_directory(directory).tokenizer.encode("MjjjK").tokens
    assert [(token.id, token.start, token.end) for token in tokens[1:-1]] == [(20, 0, 1), (3, 1, 4), (15, 4, 5)]
