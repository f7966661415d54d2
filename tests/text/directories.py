"""Small tokenizers, trained here on a few lines, in the file layouts that models come in."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hard_strings import hard_strings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def corpus() -> list[str]:
    """What the tokenizers learn from: other hard strings than the tests read."""
    return hard_strings(600, seed=7)


def write(directory: Path, **files: Any) -> None:
    """``config={...}`` becomes config.json; a text goes as it is into the file whose dot is written ``__``."""
    for name, content in files.items():
        if isinstance(content, str):
            (directory / name.replace("__", ".")).write_text(content, "utf-8", newline="")
        else:
            (directory / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), "utf-8")


@cache
def _trained(kind: str, size: int = 900) -> str:
    """A trained model inside the plainest tokenizer, as JSON."""
    if kind == "wordpiece":
        library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        library.normalizer = normalizers.BertNormalizer(lowercase=True)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=BERT_SPECIALS, show_progress=False)
    elif kind == "cased wordpiece":
        library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=BERT_SPECIALS, show_progress=False)
    elif kind == "pieces":
        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        trainer = trainers.BpeTrainer(vocab_size=size, limit_alphabet=120, show_progress=False)
    else:
        words = {"bytes": None, "qwen2": QWEN2_WORDS, "llama3": LLAMA3_WORDS}[kind]
        library = Tokenizer(models.BPE())
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
        split = [pre_tokenizers.Split(Regex(words), "isolated")] if words else []
        library.pre_tokenizer = pre_tokenizers.Sequence([*split, level]) if words else level
        library.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    return library.to_str()


def trained(kind: str) -> Tokenizer:
    return Tokenizer.from_str(_trained(kind))


def _merge_files(directory: Path, kind: str, first: list[str], last: list[str]) -> None:
    """vocab.json with these special tokens before and after the pieces, and merges.txt."""
    model = json.loads(_trained(kind))["model"]
    pieces = [*first, *sorted(model["vocab"], key=model["vocab"].get), *last]
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    write(directory, vocab={piece: i for i, piece in enumerate(pieces)}, merges__txt="\n".join(lines) + "\n")


def added(content: str, **flags: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": content, **plain, **flags}


def _typed(content: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", **added(content, **flags)}


def plain_bytes(directory: Path) -> None:
    library = trained("bytes")
    library.add_special_tokens([END])
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    write(directory, tokenizer__json=library.to_str())


def cut_and_padded(directory: Path) -> None:
    library = trained("bytes")
    library.add_special_tokens([END])
    library.enable_truncation(8)
    library.enable_padding(length=16, pad_token=END, pad_id=library.token_to_id(END))
    write(directory, tokenizer__json=library.to_str(), tokenizer_config={"pad_token": END})


def split_specials(directory: Path) -> None:
    plain_bytes(directory)
    write(directory, tokenizer_config={"split_special_tokens": True, "eos_token": END})


def gpt2_json(directory: Path) -> None:
    library = trained("llama3")  # its pre-tokenizer is not GPT-2's, and transformers 5 does not ask it
    library.add_special_tokens([END])
    library.add_tokens(["naïve", AddedToken("the", single_word=True)])
    write(directory, tokenizer__json=library.to_str(), config={"model_type": "gpt2", "eos_token_id": 900})


def gpt2_files(directory: Path) -> None:
    _merge_files(directory, "bytes", [], [END])
    write(directory, config={"model_type": "gpt2"})


def gpt2_old_files(directory: Path) -> None:
    _merge_files(directory, "bytes", [], [END])
    write(
        directory,
        tokenizer_config={"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "add_prefix_space": True},
        special_tokens_map={
            "bos_token": added("<s>"),
            "pad_token": "[PAD]",
            "additional_special_tokens": ["<|im_end|>"],
        },
        added_tokens={"[PAD]": 902, "<s>": 901, "<tool_call>": 903},
    )


def opt_files(directory: Path) -> None:
    _merge_files(directory, "bytes", ["<s>", "<pad>", "</s>", "<unk>"], [])
    named = {
        "bos_token": _typed("</s>"),
        "eos_token": _typed("</s>"),
        "unk_token": _typed("</s>"),
        "pad_token": "<pad>",
    }
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_eos_token": True, **named}
    write(directory, config={"model_type": "opt"}, tokenizer_config=settings)


def roberta_files(directory: Path) -> None:
    _merge_files(directory, "bytes", ROBERTA_SPECIALS[:4], ROBERTA_SPECIALS[4:])
    write(directory, config={"model_type": "roberta", "eos_token_id": 2})


def roberta_settings(directory: Path) -> None:
    _merge_files(directory, "bytes", ROBERTA_SPECIALS[:4], ROBERTA_SPECIALS[4:])
    mask = _typed("<mask>", lstrip=True, normalized=True)
    write(
        directory, tokenizer_config={"tokenizer_class": "RobertaTokenizer", "mask_token": mask, "trim_offsets": False}
    )


def roberta_json(directory: Path) -> None:
    library = trained("bytes")
    library.add_special_tokens([*ROBERTA_SPECIALS[:4], AddedToken("<mask>", lstrip=True)])
    ends = [(name, library.token_to_id(name)) for name in ("</s>", "<s>")]
    library.post_processor = processors.RobertaProcessing(*ends)
    write(directory, tokenizer__json=library.to_str(), config={"model_type": "roberta"})


def _vocab_txt(directory: Path, kind: str) -> None:
    vocabulary = trained(kind).get_vocab()
    write(directory, vocab__txt="\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n")


def bert_uncased(directory: Path) -> None:
    _vocab_txt(directory, "wordpiece")
    write(directory, config={"model_type": "bert"})


def bert_cased(directory: Path) -> None:
    _vocab_txt(directory, "cased wordpiece")
    write(directory, config={"model_type": "bert"}, tokenizer_config={"do_lower_case": False})


def bert_other_switches(directory: Path) -> None:
    _vocab_txt(directory, "wordpiece")
    settings = {"tokenize_chinese_chars": False, "strip_accents": False, "do_basic_tokenize": True, "never_split": None}
    write(directory, tokenizer_config={"tokenizer_class": "BertTokenizer", **settings, "cls_token": "[CLS]"})


def _unigram() -> Tokenizer:
    """The pieces of another one; the later a piece was learned, the less likely it is."""
    learned = trained("pieces").get_vocab()
    pieces = [(piece, -8 - number / 100) for number, piece in enumerate(sorted(learned, key=learned.get))]
    specials = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    library = Tokenizer(models.Unigram([*specials, *pieces], unk_id=3))
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["[MASK]"])
    ends = [(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    library.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return library


def deberta_v3(directory: Path) -> None:
    settings = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False, "split_by_punct": False}
    write(
        directory, tokenizer__json=_unigram().to_str(), config={"model_type": "deberta-v2"}, tokenizer_config=settings
    )


def deberta_other_switches(directory: Path) -> None:
    settings = {"do_lower_case": True, "split_by_punct": True, "add_prefix_space": False}
    write(
        directory, tokenizer__json=_unigram().to_str(), config={"model_type": "deberta-v2"}, tokenizer_config=settings
    )


def xlnet(directory: Path) -> None:
    names = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    data = json.loads(_unigram().to_str())
    data["model"]["vocab"] = [*([name, 0.0] for name in names), *data["model"]["vocab"][4:]]
    data["model"]["unk_id"] = 0
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"] = [{"id": i, "content": name, **flags, "special": True} for i, name in enumerate(names)]
    data["post_processor"] = None
    write(directory, tokenizer=data, config={"model_type": "xlnet"}, tokenizer_config={"do_lower_case": True})


def _pieces_of(directory: Path, names: tuple[str, ...], model_type: str, **settings: Any) -> None:
    """A Unigram tokenizer.json as a class saves it, whose first pieces are special."""
    data = json.loads(_unigram().to_str())
    data["model"]["vocab"] = [*([name, 0.0] for name in names), *data["model"]["vocab"][4:]]
    data["model"]["unk_id"] = names.index("<unk>")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"] = [
        {"id": i, "content": name, **flags, "lstrip": "mask" in name.lower(), "special": True}
        for i, name in enumerate(names)
    ]
    data["post_processor"] = None
    write(directory, tokenizer=data, config={"model_type": model_type}, tokenizer_config=settings)


_XLM_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>")
_REMBERT = ("<pad>", "[CLS]", "<unk>", "[SEP]", "[MASK]")
_BIG_BIRD = ("<unk>", "<s>", "</s>", "<pad>", "[SEP]", "[MASK]", "[CLS]")
_ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")


def xglm(directory: Path) -> None:
    _pieces_of(directory, _XLM_ROBERTA[:4], "xglm")


def umt5(directory: Path) -> None:
    _pieces_of(directory, ("<pad>", "</s>", "<unk>", "<extra_id_0>"), "umt5", tokenizer_class="T5Tokenizer")


def big_bird_without_prefix(directory: Path) -> None:
    _pieces_of(directory, _BIG_BIRD, "big_bird", add_prefix_space=False)


def pegasus_without_table(directory: Path) -> None:
    names = ("<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, 103)), "<unk>")
    _pieces_of(directory, names, "pegasus")


def xlm_roberta_xl(directory: Path) -> None:
    _pieces_of(directory, _XLM_ROBERTA, "xlm-roberta-xl", tokenizer_class="XLMRobertaTokenizer")


def xlm_roberta(directory: Path) -> None:
    _pieces_of(directory, _XLM_ROBERTA, "xlm-roberta", tokenizer_class="XLMRobertaTokenizer", model_max_length=512)


def xlm_roberta_of_a_bert(directory: Path) -> None:
    _pieces_of(directory, _XLM_ROBERTA, "bert", tokenizer_class="XLMRobertaTokenizerFast", add_prefix_space=False)


def camembert(directory: Path) -> None:
    _pieces_of(directory, _CAMEMBERT, "camembert")


def albert(directory: Path) -> None:
    _pieces_of(directory, _ALBERT, "albert")


def albert_cased(directory: Path) -> None:
    _pieces_of(directory, _ALBERT, "albert", do_lower_case=False, keep_accents=True)


def rembert(directory: Path) -> None:
    _pieces_of(directory, _REMBERT, "rembert")


def rembert_with_ends(directory: Path) -> None:
    rembert(directory)
    data = json.loads((directory / "tokenizer.json").read_text("utf-8"))
    library = Tokenizer.from_str(json.dumps(data))
    ends = [(name, _REMBERT.index(name)) for name in ("[CLS]", "[SEP]")]
    library.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    write(directory, tokenizer__json=library.to_str())


def unigram_as_stands(directory: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]"}
    write(directory, tokenizer__json=_unigram().to_str(), tokenizer_config=settings)


def distilbert(directory: Path) -> None:
    _vocab_txt(directory, "wordpiece")
    settings = {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True, "model_max_length": 512}
    write(directory, config={"model_type": "distilbert"}, tokenizer_config=settings)


def bert_json(directory: Path) -> None:
    library = trained("wordpiece")
    library.add_special_tokens(BERT_SPECIALS)
    ends = [(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    library.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    library.decoder = decoders.WordPiece()
    write(directory, tokenizer__json=library.to_str(), config={"model_type": "bert"})


def wordpiece_json(directory: Path) -> None:
    bert_json(directory)
    write(directory, config={"model_type": "xyz"}, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})


def mpnet(directory: Path) -> None:
    names = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    data = json.loads(_trained("wordpiece"))
    learned = [piece for piece in sorted(data["model"]["vocab"], key=data["model"]["vocab"].get) if piece[0] != "["]
    data["model"]["vocab"] = {piece: number for number, piece in enumerate([*names, *learned])}
    data["added_tokens"] = []
    library = Tokenizer.from_str(json.dumps(data))
    library.add_special_tokens(names)
    library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    settings = {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True}
    write(directory, tokenizer__json=library.to_str(), config={"model_type": "mpnet"}, tokenizer_config=settings)


def esm(directory: Path) -> None:
    residues = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    settings = {"tokenizer_class": "EsmTokenizer"}
    write(directory, vocab__txt="\n".join(residues), config={"model_type": "esm"}, tokenizer_config=settings)


def _pieces(normalizer: Any, pre_tokenizer: Any, specials: list[str], start: str) -> Tokenizer:
    model = json.loads(_trained("pieces"))["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in model["merges"]]
    library = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        library.normalizer = normalizer
    if pre_tokenizer is not None:
        library.pre_tokenizer = pre_tokenizer
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(specials)
    ends = [(start, library.token_to_id(start))]
    library.post_processor = processors.TemplateProcessing(
        single=f"{start}:0 $A:0", pair=f"{start}:0 $A:0 {start}:1 $B:1", special_tokens=ends
    )
    return library


def _old_llama() -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _pieces(normalizer, None, ["<unk>", "<s>", "</s>"], "<s>")


def llama(directory: Path) -> None:
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": True}
    named = {"bos_token": _typed("<s>"), "eos_token": _typed("</s>"), "unk_token": _typed("<unk>"), "pad_token": None}
    write(
        directory,
        tokenizer__json=_old_llama().to_str(),
        config={"model_type": "llama", "eos_token_id": 2},
        tokenizer_config={**settings, **named},
    )


def llama_legacy(directory: Path) -> None:
    write(
        directory,
        tokenizer__json=_old_llama().to_str(),
        config={"model_type": "llama"},
        tokenizer_config={"tokenizer_class": "LlamaTokenizerFast", "legacy": True, "eos_token": "</s>"},
        special_tokens_map={"bos_token": added("<s>"), "pad_token": added("<pad>")},
    )


def mistral(directory: Path) -> None:
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": True}
    write(
        directory,
        tokenizer__json=_old_llama().to_str(),
        config={"model_type": "mistral"},
        tokenizer_config={**settings, "additional_special_tokens": ["[INST]"], "eos_token": "</s>"},
    )


def metaspace(directory: Path) -> None:
    around = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    write(directory, tokenizer__json=_pieces(None, around, ["<unk>", "<s>", "</s>"], "<s>").to_str())


def gemma(directory: Path) -> None:
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    library = _pieces(normalizers.Replace(" ", "▁"), split, specials, "<bos>")
    write(directory, tokenizer__json=library.to_str(), config={"model_type": "gemma2"})


def _qwen2() -> Tokenizer:
    library = trained("qwen2")
    library.normalizer = normalizers.NFC()
    library.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    library.add_special_tokens([END, "<|im_start|>", "<|im_end|>"])
    library.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return library


def qwen2(directory: Path) -> None:
    library = _qwen2()
    entries = library.get_added_tokens_decoder().items()
    listed = {str(i): added(token.content, special=token.special) for i, token in entries}
    write(
        directory,
        tokenizer__json=library.to_str(),
        config={"model_type": "qwen2", "eos_token_id": 902},
        generation_config={"eos_token_id": [902, 900]},
        tokenizer_config={
            "tokenizer_class": "Qwen2Tokenizer",
            "add_prefix_space": False,
            "added_tokens_decoder": listed,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": END,
            "unk_token": None,
        },
    )


def qwen2_files(directory: Path) -> None:
    _merge_files(directory, "qwen2", [], [])
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    listed = {"900": added(END), "901": added("<|im_start|>"), "902": added("<|im_end|>")}
    write(directory, config={"model_type": "qwen2"}, tokenizer_config={**settings, "added_tokens_decoder": listed})


def qwen3_as_stands(directory: Path) -> None:
    write(directory, tokenizer__json=_qwen2().to_str(), tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})


def _llama3() -> Tokenizer:
    library = trained("llama3")
    library.model.ignore_merges = True
    library.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    start = [("<|begin_of_text|>", library.token_to_id("<|begin_of_text|>"))]
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=start)
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return library


def llama3(directory: Path) -> None:
    write(
        directory,
        tokenizer__json=_llama3().to_str(),
        config={"model_type": "llama", "eos_token_id": 901},
        generation_config={"eos_token_id": [901, 902]},
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
        },
    )


def llama3_called_llama(directory: Path) -> None:
    settings = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|begin_of_text|>", "legacy": False}
    write(directory, tokenizer__json=_llama3().to_str(), config={"model_type": "llama"}, tokenizer_config=settings)


def granite_moe(directory: Path) -> None:
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|begin_of_text|>"}
    write(directory, tokenizer__json=_llama3().to_str(), config={"model_type": "granitemoe"}, tokenizer_config=settings)


def gpt_neox(directory: Path) -> None:
    library = trained("bytes")
    library.add_special_tokens([END, "<|padding|>"])
    library.post_processor = processors.ByteLevel()
    settings = {"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": True}
    write(directory, tokenizer__json=library.to_str(), config={"model_type": "gpt_neox"}, tokenizer_config=settings)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    layout.__name__: layout
    for layout in (
        plain_bytes, cut_and_padded, split_specials,
        gpt2_json, gpt2_files, gpt2_old_files, opt_files,
        roberta_files, roberta_settings, roberta_json,
        bert_uncased, bert_cased, bert_other_switches, distilbert, bert_json, wordpiece_json, mpnet,
        deberta_v3, deberta_other_switches, xlnet, xlm_roberta, xlm_roberta_of_a_bert, camembert, albert,
        albert_cased, rembert, rembert_with_ends, unigram_as_stands,
        xglm, umt5, big_bird_without_prefix, pegasus_without_table, xlm_roberta_xl,
        llama, llama_legacy, mistral, metaspace, gemma,
        qwen2, qwen2_files, qwen3_as_stands, llama3, llama3_called_llama, granite_moe, gpt_neox,
    )
}  # fmt: skip
