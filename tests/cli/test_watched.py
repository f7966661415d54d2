"""What a run watches beside its loss, on the board: each number of its files in words, and nothing for older runs."""

import json
from pathlib import Path

import pytest
from followed import line, made

from tinytf.runs.reader import read_history
from tinytf.runs.runs import RunReport
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.run import LAYOUTS, RunDisplay, could_learn_to_copy, run

HINT = "no induction head so far: tinytf train TEXT --recipe induction"


def board(folder: Path) -> str:
    terminal = Terminal(width=200, depth="none")
    report = RunReport("r", folder, read_history(folder))
    return "\n".join(paint(run(report, terminal, RunDisplay(layout=LAYOUTS[0])), terminal))


def measured(folder: Path, induction: float = 0.1, **recipe: object) -> Path:
    made(folder, steps=40)
    (folder / "recipe.json").write_text(json.dumps({"steps": 40, "seed": 3, "batch": 4, **recipe}), "utf-8")
    heads = {"entropy": [[0.6, 0.2]], "induction": [[0.0, induction]]}
    for step, held_out, seen, copying, square in ((21, 3.0, 2.75, 0.25, -1.0), (22, 2.5, 1.5, -0.5, 1.5)):
        updates = {"embed.tokens.weight": 0.02, "blocks.0.attention.q.weight": 0.001, "blocks.1.ffn.up.weight": 0.004}
        more = {"held_out_loss": held_out, "seen_loss": seen, "copying": copying, "heads": heads, "updates": updates,
                "noise": {"trace": 4.0, "square": square}}  # fmt: skip
        with (folder / "metrics.jsonl").open("a") as lines:
            lines.write(line(step, **more))
    return folder


def test_the_board_says_what_was_measured(tmp_path: Path) -> None:
    shown = board(measured(tmp_path / "run"))
    assert "training text 1.5000   gap 1.000, 0.250 at 21   copying -0.50 nats" in shown
    assert "update ÷ weights, step 22  largest embed.tokens 2.0e-02   least L0.attention.q 1.0e-03" in shown
    # (4 + 4) / (−1 + 1.5) = 16 examples, and 1 / (1 + 16 / 4) = a fifth
    assert "gradient noise, step 22  about 16 examples, batch 4: a step gains 20 % of a noiseless one" in shown
    for title in ("copying in nats", "entropy of attention", "update ÷ weights of matrices",
                  "gradient noise in examples"):  # fmt: skip
        assert f"{title} by step" in shown


def test_noise_that_hides_the_gradient_gets_no_number(tmp_path: Path) -> None:
    folder = measured(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(line(23, noise={"trace": 4.0, "square": -0.5}))
    assert "gradient noise, step 23  too large to measure with these batches" in board(folder)


def test_a_scale_of_powers_is_labelled_with_values_and_without_colour_each_curve_has_its_mark(tmp_path: Path) -> None:
    shown = board(measured(tmp_path / "run"))
    for words in ("0.01 |", "0.001 |", "1: uniform", "0.001: rule of thumb", "batch 4"):
        assert words in shown.replace("┤", "|"), words


def test_a_run_of_an_older_version_shows_none_of_it(tmp_path: Path) -> None:
    shown = board(made(tmp_path / "run"))
    for words in ("training text", "gap", "copying", "update ÷"):
        assert words not in shown


@pytest.mark.parametrize(
    ("induction", "recipe", "hinted"),
    [(0.49, {}, True), (0.5, {}, False), (0.1, {"repeats": 0.3}, False), (0.1, {"repeats_first": 9}, False)],
)
def test_a_run_without_an_induction_head_names_the_recipe_that_grows_some(
    induction: float, recipe: dict[str, object], hinted: bool, tmp_path: Path
) -> None:
    folder = measured(tmp_path / "run", induction, **recipe)
    assert (HINT in board(folder)) == hinted
    assert could_learn_to_copy(read_history(folder)) == hinted  # what the final report asks too


def test_samples_go_from_the_first_to_the_latest(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    rows = [json.dumps({"step": step, "prompt": "The", "text": f" text {step}"}) for step in range(20)]
    (folder / "samples.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    shown = [row for row in board(folder).splitlines() if "sample, step" in row]
    assert [row.split("│")[1].strip() for row in shown] == ["text 0", "text 6", "text 13", "text 19"]
