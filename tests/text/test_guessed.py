"""Tokenizers whose files leave something open: what is assumed is said, and can be said otherwise."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer

from tinytf.errors import UsageError
from tinytf.text.choice import TokenizerChoice
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.tokenizer import Tokenizer

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SMILES = (*SPECIALS, "[unused1]", "c", "C", "Cl", "(", ")", "O", "=", "N", ">>", "[C@H]", "[O-]", "1", "%10")
SMILES_TOKEN = r"\[[^\]]+]|Cl|>>|%\d\d|[CNOc()=1]"
"""The expression of rxnmapper's own tokenizer, as far as these tokens need it."""
ATOMS_AND_BONDS = "tokenizer_class=EsmTokenizer,eos_token=[SEP]"


def directory(folder: Path, vocabulary: tuple[str, ...], settings: dict[str, Any], **config: Any) -> Path:
    (folder / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def opened(folder: Path, given: str = "") -> Tokenizer:
    return load_tokenizer_directory(folder, TokenizerChoice.parse(given).settings).tokenizer


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_an_entry_is_never_produced_if_no_short_text_gives_it(tmp_path: Path, lower: bool, chinese: bool) -> None:
    letters = ("A", "a", "é", "中", ".", "\u0301")
    vocabulary = (*SPECIALS, *letters, *(f"##{letter}" for letter in letters), "a.", "##Aa")
    settings = {"do_lower_case": lower, "tokenize_chinese_chars": chinese}
    folder = directory(tmp_path, vocabulary, settings, model_type="bert")
    theirs = BertTokenizer.from_pretrained(folder)
    texts = ("".join(text) for length in range(1, 5) for text in product(letters, repeat=length))
    given = {theirs.convert_ids_to_tokens(i) for text in texts for i in theirs(text)["input_ids"]}
    never = opened(folder).never_produced
    assert never is not None
    assert given.isdisjoint(never)
    assert set(vocabulary) - given - {*SPECIALS} == set(never)


def test_a_guess_is_said_with_the_entries_that_it_makes_useless(tmp_path: Path) -> None:
    tokenizer = opened(directory(tmp_path, SMILES, {}, model_type="albert"))
    assert tokenizer.assumed == {
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "tokenize_chinese_chars": True,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIALS},
    }  # fmt: skip
    useless = ["C", "N", "O", ">>", "Cl", "%10", "[O-]", "[C@H]", "[unused1]"]  # capitals, and signs beside others
    assert tokenizer.never_produced == useless
    (note,) = tokenizer.notes
    assert "as no file says: tokenizer_class=BertTokenizer, do_lower_case=true, " in note
    assert "no text produces 9 of its 19 entries, such as C, N, O. --tokenizer KEY=VALUE changes a guess" in note
    data = tokenizer.to_dict("")
    assert (data["assumed"], data["never_produced"]) == (tokenizer.assumed, 9)


def test_what_is_given_is_not_a_guess_and_cuts_as_the_makers_do(tmp_path: Path) -> None:
    folder = directory(tmp_path, SMILES, {}, model_type="albert")
    cased = opened(folder, "do_lower_case=false")
    assert "do_lower_case" not in cased.assumed
    assert cased.never_produced == [">>", "%10", "[O-]", "[C@H]", "[unused1]"]
    tokenizer = load_tokenizer_directory(folder, TokenizerChoice.parse(f"{ATOMS_AND_BONDS},cls_token=[CLS]").settings)
    reaction = "CC(=O)[O-][C@H]1ClN%10c1>>CCl"
    ids = tokenizer.tokenizer.encode(reaction, special=False).ids
    assert ids == [SMILES.index(token) for token in re.findall(SMILES_TOKEN, reaction)]
    assert tokenizer.note == f"from vocab.txt, with {ATOMS_AND_BONDS},cls_token=[CLS]"


def test_a_known_class_leaves_only_the_case_open(tmp_path: Path) -> None:
    assert opened(directory(tmp_path, SMILES, {}, model_type="bert")).assumed == {"do_lower_case": True}
    assert opened(directory(tmp_path, SMILES, {"do_lower_case": False}, model_type="bert")).notes == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("do_lowercase=false", "a BertTokenizer has no setting 'do_lowercase'"),
        ("add_prefix_space=true", "a BertTokenizer has no setting 'add_prefix_space'"),
        ("do_lower_case=no", "do_lower_case is not 'no'"),
        ("unk_token=true", "unk_token is not True"),
        ("unk_token=[UKN]", r"unk_token '\[UKN\]' is not in vocab.txt"),
        ("tokenizer_class=Bert", "there is no tokenizer_class 'Bert'"),
        ("here,there", "the tokenizer is 'here' or 'there', not both"),
    ],
)
def test_a_setting_that_is_not_read_is_refused(tmp_path: Path, given: str, message: str) -> None:
    folder = directory(tmp_path, SMILES, {}, model_type="albert")
    with pytest.raises(UsageError, match=message):
        opened(folder, given)
