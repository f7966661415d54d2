"""Ids in the files of a tokenizer that are far from 0: of entries, of added tokens, of starts, ends and templates."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from hostile.bases import gpt2, llama, ours, within
from hostile.case import Case

IDS = (-1, -5, -(2**31), 2**16, 10**6, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**40, 2**63, 2**64, 10**30, 0, 1,
       True, 1.0, 1e3, 1e400, "7", "99999999999", None, [], "x")  # fmt: skip
"""Ids that no tokenizer of three hundred entries has, ids that it has already, and what is no id."""
_COMMANDS = (
    ("tokens", "-m", "model", "the cat"), ("tokens", "--json", "-m", "model", "the cat"),
    ("export", "model", "new"), ("generate", "--max-tokens", "2", "-m", "model", "the cat"),
    ("generate", "--max-tokens", "2", "-m", "model", ""),
    ("trace", "-m", "model", "the cat"), ("train", "corpus.txt", "--from", "model", "--steps", "1", "--out", "new"),
)  # fmt: skip


def _entry(rng: Random, files: dict[str, Any], made: Any) -> str:
    vocabulary = files["tokenizer.json"]["model"]["vocab"]
    for piece in rng.sample(sorted(vocabulary), rng.choice((1, 1, 2))):
        vocabulary[piece] = made
    return "vocab"


def _all_entries(rng: Random, files: dict[str, Any], made: Any) -> str:
    vocabulary = files["tokenizer.json"]["model"]["vocab"]
    if isinstance(made, int):
        vocabulary.update({piece: made - number for piece, number in vocabulary.items()})
    return "every entry of vocab"


def _added(rng: Random, files: dict[str, Any], made: Any) -> str:
    token = {"content": rng.choice(("<far>", "cat", "<|endoftext|>")), "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": bool(rng.randrange(2))}  # fmt: skip
    files["tokenizer.json"]["added_tokens"].append({"id": made, **token})
    return "added_tokens"


def _decoder(rng: Random, files: dict[str, Any], made: Any) -> str:
    settings = files.setdefault("tokenizer_config.json", {})
    settings["added_tokens_decoder"] = {str(made): {"content": "<far>", "special": True}}
    return "added_tokens_decoder"


def _legacy(rng: Random, files: dict[str, Any], made: Any) -> str:
    files["added_tokens.json"] = {"<far>": made}
    return "added_tokens.json"


def _template(rng: Random, files: dict[str, Any], made: Any) -> str:
    files["tokenizer.json"]["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<far>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<far>": {"id": "<far>", "ids": [made], "tokens": ["<far>"]}},
    }
    return "a template"


def _own(rng: Random, files: dict[str, Any], made: Any) -> str:
    whole = {"ends": [made], "mask": None, "start": rng.choice((made, None)), "names": {}}
    files["tokenizer.json"]["tinytf"] = rng.choice((whole, {**whole, rng.choice(sorted(whole)): made}, made))
    return "ends and start"


def _named(rng: Random, files: dict[str, Any], made: Any) -> str:
    name = rng.choice(("eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id"))
    files.setdefault(rng.choice(("generation_config.json", "config.json")), {})[name] = rng.choice((made, [made]))
    return name


def _old_files(rng: Random, files: dict[str, Any], made: Any) -> str:
    _entry(rng, files, made)
    model = files.pop("tokenizer.json")["model"]
    files["vocab.json"] = model["vocab"]
    pairs = (merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"])
    files["merges.txt"] = "".join(f"{' '.join(pair)}\n" for pair in pairs)
    return "vocab.json"


_PLACES = (_entry, _all_entries, _added, _decoder, _legacy, _template, _own, _named, _old_files)


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"token ids {seed}")
    for _ in range(count):
        stored = rng.choice((ours, llama, gpt2))()
        files: dict[str, Any] = {n: json.loads(data) for n, data in stored.items() if n.endswith(".json")}
        made = rng.choice(IDS)
        place = rng.choice(_PLACES)(rng, files, made)
        if rng.randrange(2) and "model_type" in files["config.json"]:
            files["config.json"]["model_type"] = "mistral"  # its tokenizer.json is read as it stands
        texts = {name: data if isinstance(data, str) else json.dumps(data) for name, data in files.items()}
        written = {**stored, **{name: text.replace("Infinity", "1e400").encode() for name, text in texts.items()}}
        if "vocab.json" in files:
            del written["tokenizer.json"]
        yield Case(f"{place}: {made!r:.40}", rng.choice(_COMMANDS),
                   {**within("model", written), "corpus.txt": b"the cat sat\n" * 40})  # fmt: skip
