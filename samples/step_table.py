"""Print the table of docs/steps.md, from the step table itself: python samples/step_table.py

Covers architectures like those of GPT-2, Llama, Gemma 2 and BERT; the last column says which have the step.
"""

import dataclasses

from tinytf.presets import PRESETS
from tinytf.steps.table import STEPS, StepTable

ARCHITECTURES = {
    "GPT-2": PRESETS["gpt2"],
    "Llama": dataclasses.replace(PRESETS["llama-tiny"], qk_norm=True),
    "Gemma 2": dataclasses.replace(
        PRESETS["llama-tiny"], norm_order="both", activation="gelu_tanh", attention_cap=50.0, logit_cap=30.0
    ),
    "BERT": dataclasses.replace(PRESETS["bert-base"], head="mlm"),
}


def markdown() -> str:
    """The table, one row a step, in the order of the step table."""
    tables = {name: StepTable(config) for name, config in ARCHITECTURES.items()}
    order = dict.fromkeys(step.name for step in STEPS)
    lines = ["| step | what it is | formula | axes | in |", "|---|---|---|---|---|"]
    for name in order:
        having = [where for where, table in tables.items() if name in table.by_name]
        if not having:
            continue
        step = tables[having[0]].by_name[name]
        full = step.full_name(0) if step.in_layer else name
        where = "all" if len(having) == len(tables) else ", ".join(having)
        formula = step.formula.replace("|", "\\|")
        lines.append(f"| `{full}` | {step.title} | {formula} | {', '.join(step.axes)} | {where} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
