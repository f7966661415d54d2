"""How transformers, llama.cpp and vLLM choose the next token: their defaults, the order of their processors, and
settings as each of them spells them.

Shapes: logits (V,) of one position.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.files import SMALL, parse_json, read_bytes
from tinytf.generate.samplers import keep_min_p, keep_top_k, keep_top_p, penalise_repetition, with_temperature
from tinytf.nearest import did_you_mean
from tinytf.report import Data
from tinytf.text.printable import printable

ALL, NEW = "all tokens", "new tokens"
"""What the frequency and presence penalties count: all tokens, or those that were generated."""
GOES_ON, NEVER = "goes on after it", "never draws it"


@dataclass(frozen=True)
class Choosing(Data):
    """What decides the next token. The values here change nothing, and ``temperature`` 0 takes the most probable.

    The last ``repeat_last_n`` tokens are penalised (−1: all). ``end_ids`` end a text (None: those of the model), and so
    do ``stop_token_ids``. ``order`` names processors.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = -1
    counted_tokens: str = ALL
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    end_ids: tuple[int, ...] | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: str = ""
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        limits = (
            ("temperature", 0 <= self.temperature < math.inf, "at least 0"), ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"), ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("typical_p", 0 < self.typical_p <= 1, "above 0 and at most 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0"),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "a finite number"),
            ("presence_penalty", math.isfinite(self.presence_penalty), "a finite number"),
            ("repeat_last_n", self.repeat_last_n >= -1, "at least -1"),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "at least 0"),
        )  # fmt: skip
        for name, holds, allowed in limits:
            if not holds:
                raise UsageError(
                    f"{name} {getattr(self, name)} is not {allowed}", "give the value that the program has"
                )

    @property
    def penalises(self) -> bool:
        return self.repetition_penalty != 1 or bool(self.frequency_penalty or self.presence_penalty)

    @property
    def active(self) -> tuple[str, ...]:
        """The processors that change something, in order."""
        is_active = {
            "penalties": self.penalises, "no_repeat_ngram_size": self.no_repeat_ngram_size > 0,
            "min_new_tokens": self.min_new_tokens > 0, "temperature": self.temperature != 1, "top_k": self.top_k > 0,
            "top_p": self.top_p < 1, "min_p": self.min_p > 0, "typical_p": self.typical_p < 1,
            "ignore_eos": self.ignore_eos == NEVER,
        }  # fmt: skip
        return tuple(name for name in self.order if is_active[name])


@dataclass(frozen=True)
class Program:
    """A program: its ``defaults``, and the settings that it knows as ``names`` (theirs: ours).

    ``neutral`` are other settings with the values that change no choice; ``harmless`` ones change none at any value.
    """

    defaults: Choosing
    names: Mapping[str, str]
    neutral: Mapping[str, Any]
    harmless: frozenset[str]


_SHARED = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
_PENALTIES = {"presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty"}

# A processor that a program lacks stands in its order too, where another program's settings would put it.
PROGRAMS: Mapping[str, Program] = {
    # transformers 5.23: GenerationConfig._get_default_generation_params and GenerationMixin._get_logits_processor in
    # generation/. Without do_sample it takes the most probable token, and its warpers (temperature and below) are idle.
    "transformers": Program(
        Choosing(
            top_k=50,
            order=("ignore_eos", "penalties", "no_repeat_ngram_size", "min_new_tokens", "temperature", "top_k", "top_p",
                   "min_p", "typical_p"),
        ),
        {**_SHARED, "typical_p": "typical_p", "no_repeat_ngram_size": "no_repeat_ngram_size",
         "min_new_tokens": "min_new_tokens", "eos_token_id": "end_ids", "do_sample": "do_sample"},
        {"num_beams": 1, "guidance_scale": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None,
         "min_length": 0, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "penalty_alpha": 0.0,
         "sequence_bias": None, "bad_words_ids": None, "suppress_tokens": None, "begin_suppress_tokens": None,
         "forced_bos_token_id": None, "forced_eos_token_id": None, "exponential_decay_length_penalty": None,
         "watermarking_config": None, "dola_layers": None, "stop_strings": None},
        frozenset(("max_new_tokens", "max_length", "bos_token_id", "pad_token_id", "decoder_start_token_id",
                   "use_cache", "transformers_version", "_from_model_config", "cache_implementation", "max_time",
                   "num_return_sequences", "length_penalty", "early_stopping", "return_dict_in_generate",
                   "output_scores", "output_attentions", "output_hidden_states", "output_logits", "renormalize_logits",
                   "remove_invalid_values", "chat_format", "max_window_size", "num_beam_groups", "diversity_penalty",
                   "trust_remote_code")),
    ),
    # vLLM: SamplingParams in vllm/sampling_params.py; Sampler in vllm/v1/sample/sampler.py: min_tokens, penalties, then
    # temperature, min_p, top_k, top_p. Frequency and presence count generated tokens. A temperature below 1e-5 takes
    # the most probable token. Of a generation_config.json it takes the names of _SHARED, max_new_tokens and
    # eos_token_id (ModelConfig.get_diff_sampling_param), not do_sample.
    "vllm": Program(
        Choosing(
            counted_tokens=NEW,
            order=("ignore_eos", "min_new_tokens", "penalties", "no_repeat_ngram_size", "temperature", "min_p", "top_k",
                   "top_p", "typical_p"),
        ),
        {**_SHARED, **_PENALTIES, "min_tokens": "min_new_tokens", "stop_token_ids": "stop_token_ids",
         "eos_token_id": "end_ids", "ignore_eos": "ignore_eos"},
        {"logit_bias": None, "allowed_token_ids": None, "bad_words": None, "structured_outputs": None, "stop": None,
         "repetition_detection": None, "thinking_token_budget": None},
        frozenset(("n", "best_of", "seed", "max_tokens", "max_new_tokens", "logprobs", "prompt_logprobs", "detokenize",
                   "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "bos_token_id",
                   "pad_token_id", "transformers_version", "_from_model_config", "output_kind", "extra_args", "model")),
    ),
    # llama.cpp: common_params_sampling in common/common.h (defaults and order), common/sampling.cpp (the chain),
    # src/llama-sampler.cpp (each of them). The prompt is penalised too, within the last 64 tokens; a temperature of 0
    # or less takes the most probable token; --ignore-eos bars the end tokens with a bias of −∞.
    "llama.cpp": Program(
        Choosing(
            temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_last_n=64,
            order=("ignore_eos", "min_new_tokens", "penalties", "no_repeat_ngram_size", "top_k", "typical_p", "top_p",
                   "min_p", "temperature"),
        ),
        {**{name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n")},
         **_PENALTIES, "temp": "temperature", "typical": "typical_p", "repeat_penalty": "repetition_penalty",
         "ignore_eos": "ignore_eos"},
        {"mirostat": 0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "top_n_sigma": -1.0, "dynatemp_range": 0.0,
         "samplers": None, "sampling_seq": None, "sampler_seq": None, "logit_bias": None, "l": None, "grammar": None,
         "grammar_file": None, "json_schema": None, "j": None, "adaptive_target": -1.0, "min_keep": 0, "r": None,
         "reverse_prompt": None, "stop": None},
        frozenset(("seed", "s", "n", "predict", "n_predict", "m", "model", "p", "prompt", "f", "file", "c", "ctx_size",
                   "ngl", "gpu_layers", "n_gpu_layers", "t", "threads", "b", "batch_size", "ub", "ubatch_size", "hf",
                   "hf_repo", "no_cnv", "cnv", "st", "single_turn", "no_warmup", "jinja", "fa", "flash_attn", "stream",
                   "mirostat_lr", "mirostat_ent", "mirostat_eta", "mirostat_tau", "dry_base", "dry_allowed_length",
                   "dry_penalty_last_n", "dry_sequence_breaker", "xtc_threshold", "dynatemp_exp", "dynatemp_exponent",
                   "n_probs", "cache_prompt", "no_display_prompt")),
    ),
}  # fmt: skip
_ALSO_CALLED = {"hf": "transformers", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp"}
_AS_GIVEN = 'such as generation_config.json, vllm:temperature=0.7,top_p=0.9 or "--temp 0.7 --top-k 40"'


@dataclass(frozen=True)
class Settings(Data):
    """The settings of a ``program``, as it reads them: ``given`` were named, the others are its defaults.

    ``why`` says where a value comes from that is neither, by its name. ``unknown`` says which given names are none of
    the program's, and which are not compared.
    """

    program: str
    how: Choosing
    given: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    def value(self, name: str) -> Any:
        """A setting; of the order, only what is active."""
        return self.how.active if name == "order" else getattr(self.how, name)


def read_settings(word: str) -> Settings:
    """Settings in one of these forms; the name of the program and a colon may stand before them.

    The name of a program alone means its defaults. A .json file is a generation_config.json, or holds vLLM's
    SamplingParams or a request to llama.cpp's server. ``--temp 0.7 --top-k 40`` are flags of llama.cpp, and
    ``temperature=0.7,top_p=0.9`` names of the program that knows most of them (of several transformers, then vLLM).
    Raises UsageError for anything else.
    """
    named, colon, rest = word.partition(":")
    program = _ALSO_CALLED.get(named.lower(), named.lower())
    if program not in PROGRAMS:
        program, rest = "", word
    if program and not (colon and rest.strip()):
        return _settings(program, {}, typed=True)
    rest = rest.strip()
    typed = not rest.lower().endswith(".json")
    if not typed:
        found = _of_file(Path(rest))
    else:
        found = _of_flags(rest) if rest.startswith("-") else _of_words(rest)
        program = program or ("llama.cpp" if rest.startswith("-") else "")
    if not program:
        knows = {name: sum(key in one.names for key in found) for name, one in PROGRAMS.items()}
        program = max(knows, key=knows.__getitem__)
    return _settings(program, found, typed)


def _of_file(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_bytes(path, SMALL))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", f"give settings, {_AS_GIVEN}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {printable(str(error), spaces=False)}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no settings by name", f"give settings, {_AS_GIVEN}")
    return found


def _of_flags(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", "close the quotes") from None
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit() and word[1:2] != ".":
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            found[name] = _parsed(value) if equals else True
        elif name:
            found[name], name = _parsed(word), ""
    return found


def _of_words(text: str) -> dict[str, Any]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not pairs or not all(equals for _, equals, _ in pairs):
        raise UsageError(f"{text!r} is neither a program nor settings", _AS_GIVEN)
    return {name.strip(): _parsed(value.strip()) for name, _, value in pairs}


def _parsed(text: str) -> Any:
    """A value as JSON where it is one (numbers, true, lists), else the text."""
    try:
        return parse_json(text.lower() if text in ("True", "False", "None") else text)
    except ValueError:
        return None if text.lower() == "none" else text


def _settings(program: str, found: Mapping[str, Any], typed: bool) -> Settings:
    known = PROGRAMS[program]
    values: dict[str, Any] = {}
    unknown = []
    do_sample = False
    for name, value in found.items():
        if name == "do_sample" and name in known.names:
            do_sample = bool(value)
        elif name in known.names:
            if value is not None:
                ours = known.names[name]
                values[ours] = _checked(program, name, ours, value)
        elif name in known.neutral:
            if value not in (None, [], {}, "", False, known.neutral[name]):
                unknown.append(f"{program} has {name} {printable(str(value), spaces=False)}, which is not compared")
        elif name not in known.harmless:
            if typed and program != "llama.cpp":
                raise UsageError(
                    f"{program} has no setting {name!r}", did_you_mean(name, (*known.names, *known.neutral))
                )
            unknown.append(f"{program} knows no {printable(name, spaces=False)}")
    why = {}
    if program == "transformers" and not do_sample:
        values["temperature"], why["temperature"] = 0.0, "do_sample is false"
    given = tuple(name for name in values if name not in why)
    return Settings(program, replace(known.defaults, **values), given, why, tuple(unknown))


def _checked(program: str, name: str, ours: str, value: Any) -> Any:
    """A value in the type of our setting, as the program takes it. Raises UsageError for another type."""
    default = getattr(Choosing(), ours)
    if ours == "ignore_eos":
        return (NEVER if program == "llama.cpp" else GOES_ON) if value else ""
    if ours in ("end_ids", "stop_token_ids"):
        ids = value if isinstance(value, list) else [value]
        if all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
            return tuple(ids)
        raise UsageError(f"{name} {printable(str(value), spaces=False)} is not a token id", "ids are whole numbers")
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and -1e18 < value < 1e18
    if not is_number or (isinstance(default, int) and value != int(value)):
        kind = "whole number" if isinstance(default, int) else "number"
        raise UsageError(f"{name} {printable(str(value), spaces=False)!r} is not a {kind}", f"give {name}=NUMBER")
    if ours == "top_k":
        return max(0, int(value))  # −1 is no limit in vLLM, and any number below 1 in llama.cpp
    if ours == "temperature" and (value < 0 if program == "llama.cpp" else 0 <= value < 1e-5 and program == "vllm"):
        return 0.0
    return type(default)(value)


def differing(first: Settings, second: Settings) -> list[str]:
    """The settings that differ, in order; what a program does by itself only where that can change a choice."""
    penalises = first.how.penalises or second.how.penalises
    counts = any(one.how.frequency_penalty or one.how.presence_penalty for one in (first, second))
    idle = {"repeat_last_n": not penalises, "counted_tokens": not counts}
    names = []
    for one in fields(Choosing):
        named = one.name in first.given or one.name in second.given
        if one.name != "order" and first.value(one.name) != second.value(one.name):
            names += [one.name] if named or not idle.get(one.name) else []
    active = {*first.how.active, *second.how.active}
    orders = [[name for name in one.how.order if name in active] for one in (first, second)]
    return names + ["order"] * (orders[0] != orders[1])


def ends_of(how: Choosing, usual: Sequence[int]) -> frozenset[int]:
    """The ids after which a text ends, where the model's are ``usual``."""
    return frozenset(how.stop_token_ids) | (frozenset() if how.ignore_eos else end_ids_of(how, usual))


def end_ids_of(how: Choosing, usual: Sequence[int]) -> frozenset[int]:
    """The end tokens themselves: those given, or the ``usual`` ones of the model."""
    return frozenset(usual if how.end_ids is None else how.end_ids)


@dataclass(frozen=True)
class Place:
    """Where a token is chosen: the ``ids`` so far, how many of them are the ``prompt``, and the model's end tokens."""

    ids: Sequence[int]
    prompt: int
    usual: Sequence[int] = ()


def processed(logits: Tensor, how: Choosing, place: Place) -> Tensor:
    """The logits (V,) that a token is drawn from; −∞ for those that are not."""
    for name in how.order:
        if name in how.active:
            logits = _PROCESSORS[name](logits, how, place)
    return logits


def _penalties(logits: Tensor, how: Choosing, place: Place) -> Tensor:
    n = how.repeat_last_n
    seen = place.ids if n == -1 else place.ids[-n:] if n else ()
    logits = penalise_repetition(logits, seen, how.repetition_penalty)
    counts = Counter(place.ids[place.prompt :] if how.counted_tokens == NEW else seen)
    if not counts or not (how.frequency_penalty or how.presence_penalty):
        return logits
    ids = torch.tensor(list(counts))
    times = torch.tensor(list(counts.values()), dtype=logits.dtype)
    return logits.index_add(0, ids, -(times * how.frequency_penalty + how.presence_penalty))


def _no_ngrams(logits: Tensor, how: Choosing, place: Place) -> Tensor:
    """Bar every token that would repeat a sequence of n tokens of the text."""
    n, ids = how.no_repeat_ngram_size, list(place.ids)
    begun = ids[len(ids) - n + 1 :]
    barred = [ids[at + n - 1] for at in range(len(ids) - n + 1) if ids[at : at + n - 1] == begun]
    return _barred(logits, barred)


def _not_yet(logits: Tensor, how: Choosing, place: Place) -> Tensor:
    if len(place.ids) - place.prompt >= how.min_new_tokens:
        return logits
    return _barred(logits, [*end_ids_of(how, place.usual), *how.stop_token_ids])


def _barred(logits: Tensor, ids: Sequence[int]) -> Tensor:
    ids = sorted({one for one in ids if one < len(logits)})
    return logits.index_fill(0, torch.tensor(ids, dtype=torch.long), -math.inf) if ids else logits


def _temperature(logits: Tensor, how: Choosing, place: Place) -> Tensor:
    if how.temperature:
        return with_temperature(logits, how.temperature)
    return torch.full_like(logits, -math.inf).index_fill(0, logits.argmax(), 0.0)


def keep_typical(logits: Tensor, mass: float) -> Tensor:
    """Keep the tokens whose surprise is nearest to the entropy, with at least ``mass`` in all (Meister et al. 2022)."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).nansum()
    order = (-log_p - entropy).abs().argsort(stable=True)
    total = log_p.exp()[order].cumsum(-1)
    kept = order[: int((total < mass).sum()) + 1]
    return torch.full_like(logits, -math.inf).scatter(0, kept, logits[kept])


_PROCESSORS: Mapping[str, Callable[[Tensor, Choosing, Place], Tensor]] = {
    "penalties": _penalties,
    "no_repeat_ngram_size": _no_ngrams,
    "min_new_tokens": _not_yet,
    "ignore_eos": lambda logits, how, place: _barred(logits, list(end_ids_of(how, place.usual))),
    "temperature": _temperature,
    "top_k": lambda logits, how, place: keep_top_k(logits, how.top_k),
    "top_p": lambda logits, how, place: keep_top_p(logits, how.top_p),
    "min_p": lambda logits, how, place: keep_min_p(logits, how.min_p),
    "typical_p": lambda logits, how, place: keep_typical(logits, how.typical_p),
}
