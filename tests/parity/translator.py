"""Translates every held-out pair of tiny-translator with transformers: python tests/parity/translator.py

The pairs are made again by ``samples/dates.py``; those from the first that ships with the model on were held out. The
model is exported as a Blenderbot, which transformers opens and lets generate, greedily, sources of equal length at a
time. Prints how many are written exactly, and exits 1 if any is not.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "samples")]

import dates
import tokenizers
import torch
import transformers

from tinytf.checkpoints.huggingface.export import export
from tinytf.loading import load
from tinytf.sources import ASSETS

SHIPPED = ASSETS / "tiny-translator"
SEED = 1
"""That of ``samples/dates.py``, as the model's card says it."""


def held_out() -> list[tuple[str, str]]:
    """The pairs from the first that ships with the model on."""
    every = list(dates.pairs(SEED))
    first = tuple((SHIPPED / "held_out.tsv").read_text("utf-8").splitlines()[1].split("\t"))
    return every[every.index(first) :]


@torch.no_grad()
def main() -> int:
    pairs, wrong = held_out(), 0
    library = tokenizers.Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    end = library.token_to_id(dates.END)
    with tempfile.TemporaryDirectory() as folder:
        model = load("tiny-translator")
        export(model.transformer, model.tokenizer, Path(folder) / "blenderbot")
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(Path(folder) / "blenderbot").eval()
    settings: dict[str, Any] = {
        "decoder_start_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "do_sample": False,
    }
    by_length: dict[int, list[tuple[list[int], str]]] = {}
    for source, target in pairs:
        ids = library.encode(source).ids
        by_length.setdefault(len(ids), []).append((ids, target))
    for alike in by_length.values():  # nothing is padded
        ids = torch.tensor([source for source, _ in alike])
        settings["attention_mask"] = torch.ones_like(ids)
        rows = theirs.generate(ids, max_new_tokens=20, num_beams=1, forced_eos_token_id=None, **settings)
        for row, (source, target) in zip(rows.tolist(), alike, strict=True):
            if (written := library.decode(row)) != target:
                wrong += 1
                print(f"{library.decode(source)!r}: {written!r}, not {target!r}")
    right = len(pairs) - wrong
    print(f"{right:,} of {len(pairs):,} held-out pairs exact: {right / len(pairs):.4f} ({type(theirs).__name__})")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
