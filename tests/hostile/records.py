"""What tinytf and other programs recorded: indexes, frames of a film, logs, measurements and rows, then changed."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hostile.bases import Files, ours, within
from hostile.case import Case
from hostile.mutations import as_json, bytes_of, mutated, value
from hostile.runs import _run
from hostile.surface import files

_RECORD = (
    "record",
    "corpus.txt",
    "--at",
    "L*.out",
    "--at",
    "embed.out",
    "--out",
    "acts",
    "-m",
    "model",
    "--window",
    "16",
)
_INDEXED = (
    ("lens", "--train", "acts", "--steps", "1", "--out", "lens", "-m", "model"), _RECORD,
    ("train-sae", "acts", "--at", "L0.out", "--features", "4", "--k", "1", "--tokens", "8", "--batch", "8", "--out",
     "new", "-m", "model"),
    ("probe", "--from", "acts", "--labels", "labels.csv", "-m", "model"),
    ("features", "the cat sat", "--sae", "sae", "--top-examples", "acts", "-m", "model"),
)  # fmt: skip
_FILMED = (("runs", "--film", "run"), ("runs", "--film", "run", "--json"), ("runs", "--film", "run", "-o", "out.svg"),
    ("runs", "--film", "run", "run"),
           ("runs", "--film", "run", "-o", "out.safetensors"))  # fmt: skip
_SWEEP = ("ablate", "the cat sat", "--sweep", "heads", "-m", "model", "--resume", "kept.ndjson")
_LOG = [{"ids": [5, 6, 7, 8], "logprobs": [-0.5, -1.0, -2.0]}, {"ids": [9, 10, 11], "logprobs": [-0.25, None]}]


@cache
def _recorded() -> Files:
    from hostile.watchdog import left

    return {name: data for name, data in left(Case("a recording", _RECORD, files())).items() if name[:5] == "acts/"}


@cache
def _measured() -> bytes:
    from hostile.watchdog import left

    return left(Case("a measurement", _SWEEP, files()))["kept.ndjson"]


def _lines(rng: Random, data: bytes) -> bytes:
    """One line of JSON changed."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    if rng.randrange(6):
        lines[at] = as_json(rng, mutated(rng, json.loads(lines[at]))[1]).replace(b"\n", b"")
    else:
        lines[at] = as_json(rng, value(rng)).replace(b"\n", b"")
    return b"\n".join(lines) + b"\n"


def _tensor(rng: Random, old: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A tensor of another shape, type or content."""
    match rng.randrange(8):
        case 0:
            return np.zeros(rng.choice([(), (0,), (1,), (2, 3), (1, 1, 1, 1, 1), (0, 5)]), old.dtype)
        case 1:
            return old[None]
        case 2 if old.ndim:
            return np.concatenate([old, old])
        case 3 if old.ndim:
            return old[:-1]
        case 4 if old.ndim:
            return np.ascontiguousarray(old.T)
        case 5:
            return old.astype(rng.choice([np.int64, np.bool_, np.uint8, np.float64, np.float16]))
        case 6:
            return np.full_like(old, rng.choice([np.nan, np.inf, -np.inf, 60_000.0, -1.0]))
    return old.reshape(-1)


def _frame(rng: Random, data: bytes) -> bytes:
    """A frame with other tensors, or other words."""
    tensors: dict[str, Any] = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = dict(header["__metadata__"])
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(tensors))
        match rng.randrange(6):
            case 0:
                del tensors[name]
            case 1:
                tensors[rng.choice(("heads.x", "dead", "rms", "seen.maps", "\x1b[31m"))] = tensors[name]
            case 2:
                said = as_json(rng, mutated(rng, json.loads(metadata["tinytf"]))[1])
                metadata["tinytf"] = said.decode("utf-8", "replace")
            case _:
                tensors[name] = _tensor(rng, tensors[name])
    return save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, metadata)


def _film(rng: Random) -> tuple[str, dict[str, Any]]:
    made = dict(_run())
    names = [name for name in made if name.startswith("run/frames/step-") and name.endswith(".safetensors")]
    for name in names if not rng.randrange(4) else [rng.choice(names)]:
        with suppress(SafetensorError):
            made[name] = _frame(rng, made[name]) if rng.randrange(8) else bytes_of(rng, made[name], 400)[1]
    if not rng.randrange(5):
        made["run/frames/probes.json"] = as_json(rng, mutated(rng, json.loads(made["run/frames/probes.json"]))[1])
    return "frames", made


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"records {seed}")
    for _ in range(count):
        match rng.randrange(7):
            case 0 | 1:
                about, made = mutated(rng, json.loads(_recorded()["acts/index.json"]))
                index = as_json(rng, made)
                yield Case(f"index.json: {about}", rng.choice(_INDEXED),
                           {**files(), **_recorded(), "acts/index.json": index})  # fmt: skip
            case 2 | 3:
                about, made = _film(rng)
                yield Case(about, rng.choice(_FILMED), made)
            case 4:
                log = "".join(f"{json.dumps(row)}\n" for row in _LOG).encode()
                words = ("diff", "--logprobs", "a.jsonl", "b.jsonl")
                floor = rng.choice(((), ("-m", "model", "--floor", "bf16")))
                changed = _lines(rng, log)
                made = {"a.jsonl": changed, "b.jsonl": rng.choice((log, changed))}
                yield Case(f"a log {changed[:100]!a}", (*words, *floor), {**within("model", ours()), **made})
            case 5:
                changed = _lines(rng, _measured())
                yield Case(f"measurements {changed[:100]!a}", _SWEEP, {**files(), "kept.ndjson": changed})
            case _:
                row = {"clean": "the cat", "corrupt": "the dog", "answer": "#5", "versus": "#6"}
                changed = _lines(rng, (json.dumps(row).encode() + b"\n") * 2)
                yield Case(f"rows {changed[:100]!a}", ("circuit", "--pairs", "pairs.jsonl", "-m", "model"),
                           {**files(), "pairs.jsonl": changed})  # fmt: skip
