"""Prints how often each question over pairs claims an effect where there is none: of 200 draws, the share.

``python tests/parity/null_pairs.py [--draws 200]`` asks every question of the pairs of samples/places.jsonl, and of
them with clean and corrupt text exchanged. A draw tosses two coins for each pair: which of the two it is, and whether
answer and versus change places, which turns the sign of every lead and of every effect on it. So the mean of each
effect is 0, and a headline that claims one is false. A draw takes the numbers of the pairs as measured; only means,
intervals and the headline are computed again.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

import tinytf
from tinytf.cause.over_pairs import OverPairs
from tinytf.cause.over_pairs.report import without_effect

PAIRS = Path(__file__).parents[2] / "samples" / "places.jsonl"
SILENT = (
    *("no clear effect", "none clearly matters", "does not clearly move"),
    *("no patch", "no clear lead", "lead no more"),
)
"""What headlines say where they claim no effect; an empty one claims none either."""
QUESTIONS: Mapping[str, tuple[str, dict[str, object]]] = {
    "attribute": ("attribute_over", {}),
    "ablate, each head": ("ablate_over", {"sweep": "heads"}),
    "ablate, one head": ("ablate_over", {"at": "L1H0"}),
    "patch, each head": ("patch_over", {"sweep": "heads"}),
    "patch, one head": ("patch_over", {"at": "L1H0"}),
    "patch, the stream": ("patch_over", {"sweep": "residual"}),
    "patch --estimate gradient": ("patch_estimate_pairs", {}),
    "patch --estimate grad-drop": ("patch_estimate_pairs", {"how": "grad-drop"}),
    "lens": ("lens_over", {}),
}


def drawn(both: tuple[OverPairs, OverPairs], generator: torch.Generator) -> OverPairs:
    """A report of the pairs of one draw."""
    count = len(both[0].examples)
    exchanged = torch.randint(2, (count,), generator=generator).bool()
    sign = 1.0 - 2.0 * torch.randint(2, (count, 1), generator=generator).double()
    first = both[0].quantities[0]
    values = torch.where(exchanged[:, None], both[1].quantities[0].values, first.values)
    # a size has no sign to turn
    values = values * sign if first.signed else values
    chosen = [both[int(side)].examples[number] for number, side in enumerate(exchanged)]
    examples = tuple(
        dataclasses.replace(one, clean_lead=turn * one.clean_lead, corrupt_lead=turn * one.corrupt_lead)
        for one, turn in zip(chosen, sign[:, 0].tolist(), strict=True)
    )
    leads = torch.tensor([[one.clean_lead, one.corrupt_lead] for one in examples], dtype=torch.float64)
    quantity = first.with_values(values, leads)
    by = both[0].by if both[0].in_order else quantity.ranked[0]
    return dataclasses.replace(both[0], examples=examples, quantities=(quantity, *both[0].quantities[1:]), by=by)


def claims(sentence: str) -> bool:
    return bool(sentence) and not any(words in sentence for words in SILENT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    model = tinytf.load("tiny")
    rows = [vars(pair) for pair in tinytf.PairSet.read(PAIRS).pairs]
    pairs = [{name: row[name] for name in ("clean", "corrupt", "answer", "versus")} for row in rows]
    turned = [{**row, "clean": row["corrupt"], "corrupt": row["clean"]} for row in pairs]
    print(f"{len(pairs)} pairs, {draws} draws of null pairs, tiny")
    total = 0
    for name, (method, settings) in QUESTIONS.items():
        both = tuple(getattr(model, method)(of, **settings) for of in (pairs, turned))
        generator = torch.Generator().manual_seed(0)
        reports = [drawn((both[0], both[1]), generator) for _ in range(draws)]
        false = sum(claims(report.in_a_sentence()) for report in reports)
        total += false
        print(f"{name:30} {false:4} of {draws}  {100 * false / draws:5.1f} %", flush=True)
        if name == "patch, each head":  # the sentence of a circuit names a share only where this effect is clear
            false = sum(not without_effect(report.effect, report.metric) for report in reports)
            total += false
            print(f"{'circuit':30} {false:4} of {draws}  {100 * false / draws:5.1f} %", flush=True)
    print(f"all: {100 * total / draws / (len(QUESTIONS) + 1):.1f} %")


if __name__ == "__main__":
    main()
