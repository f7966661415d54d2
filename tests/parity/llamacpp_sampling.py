"""Draws with llama.cpp's own samplers, and compares the tokens that may be drawn, and their probabilities, with ours.

``python tests/parity/llamacpp_sampling.py FOLDER``, where ``npm install node-llama-cpp`` was run in FOLDER. It chains
the samplers in the order of llama.cpp's command line. Exits 1 where a set differs, or a probability by more than 1e-5.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "checkpoints", "text")]

import torch
from gguf_files import Kind, model_and_parts

from tinytf.checkpoints.gguf import read_gguf
from tinytf.generate.programs import PROGRAMS, Choosing, Place, processed

TOLERANCE = 1e-5
IDS = [*(number * 7 % 250 for number in range(30)), 7, 14, 7, 14, 21]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.5, "top_k": 0, "top_p": 0.7, "min_p": 0.0},
    {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.3},
    {"temperature": 1.3, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.4},
    {"temperature": 0.9, "top_k": 60, "repetition_penalty": 0.7, "frequency_penalty": -0.1},
]


def as_asked(how: Choosing) -> dict[str, Any]:
    """Settings as node-llama-cpp spells them."""
    penalties = {"penalty": how.repetition_penalty, "frequencyPenalty": how.frequency_penalty,
                 "presencePenalty": how.presence_penalty}  # fmt: skip
    return {"temperature": how.temperature, "topK": how.top_k, "topP": how.top_p, "minP": how.min_p,
            **({"penalties": penalties} if how.penalises else {})}  # fmt: skip


@torch.no_grad()
def main() -> int:
    ways = [replace(PROGRAMS["llama.cpp"].defaults, **settings) for settings in SETTINGS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = model_and_parts("llama", Kind.F32)[1].write(folder / "a.gguf")
        logits = read_gguf(path).load(torch.float32).transformer(torch.tensor([IDS]))[0, -1]
        job = {"path": str(path), "ids": IDS, "options": [as_asked(how) for how in ways]}
        (folder / "job").write_text(json.dumps(job), "utf-8")
        script = Path(__file__).with_suffix(".mjs")
        subprocess.run(["node", script, Path(sys.argv[1]).resolve(), folder / "job", folder / "answer"], check=True)
        answers = json.loads((folder / "answer").read_text("utf-8"))
    wrong = 0
    for settings, how, answer in zip(SETTINGS, ways, answers, strict=True):
        theirs = torch.zeros(len(logits), dtype=torch.float64)
        theirs[[token for token, _ in answer]] = torch.tensor([share for _, share in answer], dtype=torch.float64)
        ours = processed(logits, how, Place(IDS, len(IDS))).double().softmax(-1)
        gap, alike = float((ours - theirs).abs().max()), torch.equal(ours > 0, theirs > 0)
        is_right = alike and gap <= TOLERANCE
        wrong += not is_right
        words = f"{int((theirs > 0).sum()):4} tokens, {gap:.1e}"
        sys.stdout.write(f"{'right' if is_right else 'different':10}{words}  {settings or 'defaults'}\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
