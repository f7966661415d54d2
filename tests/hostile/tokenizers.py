"""tokenizer.json and chat templates: bombs, expressions that go back and forth, panics, odd types and missing parts."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from hostile.bases import gpt2, llama, ours, within
from hostile.case import Case
from hostile.mutations import as_json, mutated
from hostile.strings import argument, text, word

_CATASTROPHES = (r"(x+x+)+y", r"(a|a)*$", r"(a+)+$", r"(.*)*\1$", r"(?=(a+))a*b\1", r"\s*\s*\s*\s*\s*$", r"(\w*)*!",
                 r"(?<=a*)b", "(", "[", r"\p{Nothing}", "", r"a{99999}{99999}", r"((a{1,99}){1,99}){1,99}", r"[\s\S]*",
                 r"(?i)\X", r"\G(a|b)*", "\0", "(((((((((((a)))))))))))*")  # fmt: skip
_TEXTS = ("x" * 60, "a" * 3_000 + "b", " " * 3_000 + "x", "the cat", "aaaa <s> aaaa", "坐 \u202e x", "")
_LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='xxxx') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{{ ('x' * 99999).replace('', 'x' * 99999) }}", "{{ 'x'|center(9999999999) }}", "{{ '%9999999999d' % 1 }}",
    "{{ 'x'.ljust(9999999999) }}", "{{ [1] * 9999999999 }}", "{{ 9 ** (9 ** 9) }}",
    "{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}", "{{ messages|tojson(indent=9999999999) }}",
)  # fmt: skip
_TEMPLATES = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "{{ messages[9].content }}", "{% if %}", "{{",
    "{{ ''.__class__.__mro__ }}", "{{ raise_exception('\x1b[31m\u202e') }}", "{{ strftime_now('%Y' * 99) }}", "",
    "{% include 'x' %}", "{{ messages|sum }}", "{{ 1 / 0 }}", "{{ x.y.z }}", "{% for m in messages %}", "\x1b]0;x\x07",
    "{{ messages[0].content * 99999999 }}", "{{ cycler.__init__.__globals__ }}", "{{ lipsum.__globals__ }}",
)  # fmt: skip


def _bomb(rng: Random) -> tuple[str, Any]:
    """A part that makes much of a little, and how it is called."""
    many, letter = rng.choice((3, 9, 12, 30, 200)), rng.choice(("a", "x", " "))
    size = rng.choice((1, 50, 900, 5_000, 2**20))
    doubling = [{"type": "Replace", "pattern": {"String": letter}, "content": letter * 2}] * many
    return rng.choice((
        ("normalizer", {"type": "Sequence", "normalizers": doubling}),
        ("normalizer", {"type": "Prepend", "prepend": letter * size}),
        ("normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": letter * size}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": rng.choice(_CATASTROPHES)}, "content": letter * size}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": rng.choice(("", "AAAA", "x" * 99, 7))}),
        ("decoder", {"type": "Sequence", "decoders": doubling}),
        ("decoder", {"type": "Replace", "pattern": {"Regex": rng.choice(_CATASTROPHES)}, "content": letter * size}),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": rng.choice(_CATASTROPHES)}, "behavior": "Isolated",
                           "invert": rng.choice((True, False))}),
        ("padding", {"strategy": {"Fixed": 10**rng.randrange(1, 10)}, "direction": "Right", "pad_to_multiple_of": None,
                     "pad_id": 0, "pad_type_id": 0, "pad_token": letter}),
        ("truncation", {"direction": "Right", "max_length": rng.choice((0, 1, 2**40)), "strategy": "LongestFirst",
                        "stride": rng.choice((0, 5, 2**40))}),
        ("post_processor", {"type": "TemplateProcessing", "pair": [], "single": [
            {"SpecialToken": {"id": letter, "type_id": 0}}] * size,
            "special_tokens": {letter: {"id": letter, "ids": [0] * rng.choice((0, 1, 999)), "tokens": [letter]}}}),
        ("added_tokens", [{"id": rng.choice((0, 7, 2**31)), "content": letter * size, "single_word": False,
                           "lstrip": True, "rstrip": True, "normalized": True, "special": bool(rng.randrange(2))}]),
    ))  # fmt: skip


def _model(rng: Random) -> tuple[str, Any]:
    """A vocabulary that makes much of a little."""
    letter, size = rng.choice("ax "), rng.choice((900, 50_000))
    vocabulary = {letter * rng.choice((1, 2, size)): number for number in range(3)} | {"<unk>": 3}
    model = rng.choice((
        {"type": "WordPiece", "vocab": vocabulary, "unk_token": "<unk>", "continuing_subword_prefix": letter * size,
         "max_input_chars_per_word": 10**rng.randrange(2, 18)},
        {"type": "WordLevel", "vocab": vocabulary | {"?" * size: 4}, "unk_token": "?" * size},
        {"type": "Unigram", "unk_id": rng.choice((0, 3, 99)), "vocab": [[one, -1.0] for one in vocabulary]},
        {"type": "BPE", "vocab": vocabulary, "merges": [[letter, letter]], "dropout": rng.choice((0.5, 1.0, 2.0)),
         "continuing_subword_prefix": letter * size, "end_of_word_suffix": letter * size},
    ))  # fmt: skip
    return "model", model


def _template(rng: Random, files: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    source = rng.choice(_LOOPS) if rng.randrange(10) == 0 else rng.choice((*_TEMPLATES, word(rng)))
    stored = rng.choice((source, [{"name": "default", "template": source}], {"default": source}, [source], 7))
    settings = json.dumps({"chat_template": stored}).encode("utf-8", "surrogatepass")
    if rng.randrange(2):
        made = {"chat_template.jinja": source.encode("utf-8", "surrogatepass")}
    else:
        made = {"tokenizer_config.json": settings}
    return f"chat template {source[:60]!a}", {**files, **made}


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"tokenizers {seed}")
    for _ in range(count):
        files = dict(rng.choice((ours, llama, gpt2))())
        if rng.randrange(5) == 0:
            about, files = _template(rng, rng.choice((llama, gpt2))())
            said = rng.choice(("the cat", "", text(rng)))
            yield Case(about, ("tokens", "--chat", "-m", "model", "--", argument(rng, said)), within("model", files))
            continue
        data = json.loads(files["tokenizer.json"])
        match rng.randrange(4):
            case 0 | 1:
                name, part = _bomb(rng)
                data[name] = part
                about = f"{name}: {ascii(part)[:80]}"
            case 2:
                name, part = _model(rng)
                data[name] = part
                about = f"{name}: {ascii(part)[:80]}"
            case _:
                data["model"] = {**data["model"], "vocab": dict(list(data["model"]["vocab"].items())[:20])}
                about, data = mutated(rng, data)
        # A model of no known class: transformers, and so tinytf, read its tokenizer.json as it stands.
        config = json.loads(files["config.json"])
        if rng.randrange(2) and "model_type" in config:
            config["model_type"] = "mistral"
            files["config.json"] = json.dumps(config).encode()
        words = rng.choice((("tokens", "-m", "model"), ("tokens", "--json", "-m", "model"),
                            ("generate", "--max-tokens", "2", "-m", "model")))  # fmt: skip
        files["tokenizer.json"] = as_json(rng, data)
        given = argument(rng, rng.choice((*_TEXTS, text(rng))))
        yield Case(f"tokenizer, {about}", (*words, "--", given), within("model", files))
