"""Ports of small models in which one setting of a part has another value: what ``diff`` says of each.

``python tests/parity/wrong_settings.py [KIND …]`` prints a table. The port is a model of the other configuration
with the weights of ours, recorded as a user would, and knows nothing of what is compared.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import torch

sys.path += [str(Path(__file__).parents[1])]

from architectures import KINDS, asked, config_of, encoding_of, facing, lively

from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import Dump
from tinytf.compare.settings import Program, programs
from tinytf.errors import ConfigError
from tinytf.model.transformer import Transformer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

IDS = [3, 14, 15, 9, 2, 6, 5, 20, 11, 7]


def port(ours: Transformer, program: Program) -> Trace | None:
    """A run of the wrong program with our weights; None where it needs matrices that ours lacks, or others."""
    with suppress(RuntimeError, ValueError, LookupError, ConfigError):  # layers that take what no layer has
        theirs = Transformer.initialised(program.table.config, 0)
        state, own = theirs.state_dict(), ours.state_dict()
        if all(own[name].shape == one.shape if name in own else one.dim() == 1 for name, one in state.items()):
            theirs.load_state_dict({name: own.get(name, one) for name, one in state.items()})
            return record(facing(theirs), encoding_of(IDS))
    return None


def dumped(trace: Trace) -> Dump:
    """All steps of a run that are tensors."""
    tensors = {"input_ids": torch.tensor(IDS)}
    for step, layer in trace.steps.rows:
        if step.is_tensor and step.name != "ids":
            tensors[step.full_name(layer)] = trace.step(step.name, layer)
    return Dump(Path("port"), {name: tuple(one.shape) for name, one in tensors.items()}, tensors.__getitem__)


def verdicts(kind: str, every: int = 1) -> Iterator[tuple[str, str, Difference]]:
    """Each wrong program of a kind that runs, or the first of ``every`` so many, and whether its cause is right.

    ``alike`` where other mistakes, made wherever they are named, give all of its numbers too, and ``in part`` where
    they do up to a step of which nothing is said.
    """
    model = facing(lively(config_of(kind)))
    every_program = programs(model.config)
    first = [*KINDS].index(kind) % min(every, len(every_program))
    for start in range(first, len(every_program), every):
        runs = ((program, port(model, program)) for program in every_program[start : start + every])
        for program, run in islice(((program, run) for program, run in runs if run is not None), 1):
            found = asked(model).diff(None, dumped(run))
            yield program.words, _verdict(found, program), found


def _verdict(found: Difference, program: Program) -> str:
    if found.first is None:
        return "the same"
    causes = [one for one in found.causes if one.found]
    if not causes:
        return "none"
    if program.words in (causes[0].words, *causes[0].others):
        return "right"
    if len(causes) < len(found.causes):
        return "in part"
    return "alike" if causes[-1].explained == causes[-1].later else "wrong"


if __name__ == "__main__":
    counts: Counter[str] = Counter()
    for kind in sys.argv[1:] or KINDS:
        for words, verdict, found in verdicts(kind):
            counts[verdict] += 1
            if verdict not in ("right", "the same") and found.cause:
                print(
                    f"{kind[:20]:20} {verdict:8} {words}: {found.cause.step}: {found.cause.in_words[:160]}", flush=True
                )
    print(dict(counts))
