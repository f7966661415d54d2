"""Ports with one fault each, and sound ones: does ``diff`` name the first wrong step, and why it is wrong?

``python tests/parity/broken_ports.py [NAME …] [--json FILE]`` prints a table and counts: first step right, a right
cause, a wrong one, sound ones accused; names, or beginnings of names, choose ports. With ``--floor``, what is called
rounding and what a bug. With ``--check``, what ``check`` says of modules that
people write. Each port is a model of transformers (SmolLM2 and Gemma 3 270M, whose files
TINYTF_REAL_WEIGHTS holds, and small ones of many families with random weights) in which one thing is changed, dumped by
forward hooks under its module paths. One hand wrote ``broken/first_hand.py`` and
``broken/context.py``, beside what they test; another most
others, from how people port, before it read what tinytf knows; a third ``third_hand.py`` and
``third_sound.py``, from public reports, without a look at either.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from broken import (
    attended,
    caches,
    checks,
    constructed,
    context,
    first_hand,
    formulas,
    leaning,
    real,
    settings,
    sound,
    third_hand,
    third_sound,
    weights,
)
from broken.bench import TEXT, Patch, Port, accused, cause_of, compared, verdict
from broken.models import both
from broken.patches import exchanged, shaken
from sentences import sentences

__all__ = [
    "BROKEN", "REAL", "ROUNDED", "SECOND", "SECOND_SOUND", "SOUND", "TEXT", "Patch", "Port", "accused", "both",
    "compared", "constructed", "context", "exchanged", "first_hand", "leaning", "shaken", "third_hand", "third_sound",
    "verdict",
]  # fmt: skip
REAL = ("smollm2", "gemma3", "minilm")
SECOND = {**settings.BROKEN, **formulas.BROKEN, **weights.BROKEN, **caches.BROKEN, **real.BROKEN}
SECOND_SOUND = {**sound.SOUND, **real.SOUND}
BROKEN = {
    **first_hand.BROKEN, **SECOND, **third_hand.BROKEN, **context.BROKEN, **attended.BROKEN, **constructed.BROKEN,
}  # fmt: skip
SOUND = {**first_hand.SOUND, **SECOND_SOUND, **third_sound.SOUND, **context.SOUND}
ROUNDED = re.compile("weights in|router in|norm in|exact GELU|NaN")
"""Ports that only round, and one whose activation differs by less than bfloat16 rounds."""


def judged(names: Sequence[str]) -> None:
    """Print, for ports in bfloat16, whether each is called rounding or a bug; then sentences in other programs.

    Names, or beginnings of names, choose ports; without them it is all ports and the sentences.
    """
    called = {"bug": 0, "rounding": 0}
    for name, port in first_hand.BROKEN.items():
        if ROUNDED.search(name) or port.text != TEXT or not (not names or name.startswith(tuple(names))):
            continue
        floor = compared(port, torch.bfloat16, floor="bf16").floor
        called["bug" if floor.bug else "rounding"] += 1
        print(f"{name:32} {floor.in_words()}", flush=True)
    for name, (broken, step, _) in leaning.FAULTS.items():
        for model in ("smollm2", "gemma3", "llama") if not names or name.startswith(tuple(names)) else ():
            floor = compared(Port(model, broken, ""), torch.bfloat16, floor="bf16").floor
            called["bug" if floor.bug and floor.bug.name == step else "rounding"] += 1
            print(f"{model + ': ' + name:32} {floor.in_words()}", flush=True)
    print(f"broken ports in bfloat16: {called}")
    if names:
        return
    alarms, count, most = 0, 0, 0.0
    for model in ("smollm2", "gemma3"):
        for text in sentences(10):
            for attention, dtype, word in (("eager", torch.bfloat16, "bf16"), ("sdpa", torch.bfloat16, "bf16"),
                                           ("eager", torch.float16, "fp16")):  # fmt: skip
                if model == "gemma3" and word == "fp16":
                    continue  # whose stream is too large for float16
                port = Port(model, lambda one, patch, by=attention: one.set_attn_implementation(by), "", text=text)
                floor = compared(port, dtype, floor=word).floor
                alarms, count = alarms + (floor.bug is not None), count + 1
                most = max(most, floor.worst.times)
    print(f"{count} sound runs: {alarms} called a bug; at most {most:.2g} × the model's own error")


def measured(name: str, port: Port, is_sound: bool) -> dict[str, Any]:
    """What a comparison says of one port, and how long that takes."""
    start = time.perf_counter()
    try:
        found = compared(port)
    except Exception as error:
        return {"port": name, "sound": is_sound, "failed": f"{type(error).__name__}: {error}", "seconds": 0.0}
    answer = {
        "port": name,
        "sound": is_sound,
        "model": port.model,
        "seconds": time.perf_counter() - start,
        "step": found.first and found.first.name,
        "words": cause_of(found),
    }
    if is_sound:
        return {**answer, "accused": accused(found)}
    first, cause = verdict(port, found)
    return {**answer, "first": first, "cause": cause, "called sound": not accused(found)}


def checked(names: Sequence[str]) -> None:
    """Print what ``check`` says of modules with one fault, and of sound ones; names, or beginnings, choose some."""
    counts: Counter[str] = Counter()
    chosen = lambda name: not names or name.startswith(tuple(names))  # noqa: E731
    for name, fault in filter(lambda row: chosen(row[0]), checks.BROKEN.items()):
        found = checks.said(fault.source, (fault.right, fault.wrong), fault.beside)
        step, line, cause = checks.verdict(fault, found)
        counts += Counter({"first step": step, "line": line, f"cause {cause}": 1, "broken": 1})
        at = found.first_wrong and found.first_wrong.step
        marks = f"{'' if step else 'STEP':4} {'' if line else 'LINE':4}"
        print(f"{name:40} {cause:5} {marks} {at} {checks.words_of(found)[:120]}", flush=True)
    for name, (source, edit) in filter(lambda row: chosen(row[0]), checks.SOUND.items()):
        found = checks.said(source, edit)
        counts += Counter({"accused": checks.accused(found), "sound": 1})
        print(f"{name:40} sound {'ACCUSED' if checks.accused(found) else ''} {found.in_a_sentence()[:120]}", flush=True)
    print(dict(counts))


def totals(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of all ports, and the slowest one of SmolLM2, in seconds."""
    broken = [one for one in answers if not one["sound"]]
    causes = Counter(one.get("cause", "failed") for one in broken)
    return {
        "broken": len(broken),
        "first": sum(one.get("first", False) for one in broken),
        **{kind: causes[kind] for kind in ("right", "none", "wrong", "failed")},
        "called sound": sum(one.get("called sound", False) for one in broken),
        "sound": len(answers) - len(broken),
        "accused": sum(one.get("accused", True) for one in answers if one["sound"]),
        "slowest of SmolLM2": max((one["seconds"] for one in answers if one.get("model") == "smollm2"), default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Broken ports, and what diff says of them.")
    parser.add_argument("names", nargs="*", help="names of ports, or beginnings of names")
    parser.add_argument("--json", type=Path, help="write every verdict and the totals to this file")
    parser.add_argument("--floor", action="store_true", help="tell rounding from bugs instead")
    parser.add_argument("--small", action="store_true", help="only models with random weights")
    parser.add_argument("--check", action="store_true", help="modules that people write, beside a reference")
    given = parser.parse_args()
    if given.check:
        checked(given.names)
        return
    if given.floor:
        judged(given.names)
        return
    answers = []
    for table in (BROKEN, SOUND):
        for name, port in table.items():
            if (given.names and not name.startswith(tuple(given.names))) or (given.small and port.model in REAL):
                continue
            answer = measured(name, port, table is SOUND)
            answers.append(answer)
            told = answer.get("failed") or answer.get("words") or ""
            marks = ("sound", "ACCUSED" if answer.get("accused", True) else "") if answer["sound"] else (
                answer.get("cause", "failed"), "" if answer.get("first") else "FIRST")  # fmt: skip
            print(
                f"{name:50} {answer['seconds']:5.1f} s {marks[0]:6} {marks[1]:8} {answer.get('step')} {told[:150]}",
                flush=True,
            )
    found = totals(answers)
    if given.json is not None:
        given.json.write_text(json.dumps({"totals": found, "ports": answers}, indent=1, ensure_ascii=False) + "\n")
    print(", ".join(f"{name} {count if isinstance(count, int) else f'{count:.0f} s'}" for name, count in found.items()))


if __name__ == "__main__":
    main()
