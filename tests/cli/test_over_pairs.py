"""Many pairs on the command line: --pairs and --where of seven commands, what they draw, write and refuse."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error
from rich.cells import cell_len
from safetensors import safe_open

import tinytf as library
from tinytf_cli.main import run

PLACES = Path(__file__).parents[2] / "samples" / "places.jsonl"
COMMANDS = {
    "attribute": (), "lens": (), "attention": (), "heads": ("--by", "first"), "score": (),
    "ablate": ("--sweep", "heads"), "patch": ("--sweep", "residual"),
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_comes_first_on_one_screen_with_intervals_and_examples(tinytf: Tinytf, name: str) -> None:
    ran = tinytf(name, "--pairs", PLACES, *COMMANDS[name], "--width", "100")
    assert ran.status == 0, ran.err
    data = json.loads(tinytf(name, "--pairs", PLACES, *COMMANDS[name], "--json").out)
    assert " ".join(ran.out.split()).startswith(" ".join(data["sentence"].split()))
    assert len(ran.lines) <= 45
    assert max(cell_len(line) for line in ran.lines if "…" not in line) <= 100
    by = next(row for row in data["rows"] if row["name"] == data["by"])
    estimate = by[data["quantities"][0]["name"]]
    assert estimate["low"] <= estimate["value"] <= estimate["high"]
    (drawn,) = [line for line in ran.lines if re.match(rf"  {re.escape(data['by'])} +[+-]?[0-9]", line)][:1]
    low, high = (float(number) for number in re.findall(r"([+-]?[0-9.]+) … ([+-]?[0-9.]+)", drawn)[0])
    assert (low, high) == pytest.approx((estimate["low"], estimate["high"]), abs=0.06)
    lines = [int(match[1]) for line in ran.lines if (match := re.match(r" +(\d+) +[+-]?\d+\.\d+ +[+-]", line))]
    each = next(
        name for name in (*data["examples"][0],)[::-1] if name == data["quantities"][0]["name"] or name == "moved"
    )
    index = [row["name"] for row in data["rows"]].index(data["by"])
    ranked = sorted(data["examples"], key=lambda example: -example[each][index])
    assert lines == [example["line"] for example in (*ranked[:3], *ranked[-3:])]


@pytest.mark.parametrize(
    ("command", "arguments", "what"),
    [("ablate", ("--sweep", "heads"), "other ablations"), ("patch", ("--sweep", "heads"), "other patches"),
     ("attribute", (), "other parts"), ("patch", ("--at", "L1H0", "--controls", "2"), "random heads of L1"),
     ("ablate", ("--at", "L1H0", "--at", "L2H1"), "random sets of 2 heads of the same layers")],
)  # fmt: skip
def test_an_effect_over_pairs_stands_beside_others_of_its_kind(
    tinytf: Tinytf, command: str, arguments: tuple[str, ...], what: str
) -> None:
    ran = tinytf(command, "--pairs", PLACES, *arguments, "--width", "80")
    control = json.loads(tinytf(command, "--pairs", PLACES, *arguments, "--json").out)["control"]
    assert control["what"] == what
    assert 0 <= control["exceeded"] <= control["count"] - control["reached"]
    words = f"clearly larger than {control['exceeded']} of {control['count']} {what}; their"
    assert words in " ".join(ran.out.split())
    assert f"median {control['median']:.4f}, largest {control['largest']:.4f}" in " ".join(ran.out.split())


def test_controls_go_with_an_address(tinytf: Tinytf) -> None:
    for command in ("ablate", "patch"):
        refused = tinytf(command, "--pairs", PLACES, "--sweep", "heads", "--controls", "3")
        assert is_a_clean_error(refused, 2)
        assert "--controls goes with --at" in refused.err
        data = json.loads(tinytf(command, "--pairs", PLACES, "--at", "L1H0", "--controls", "0", "--json").out)
        assert data["control"] is None


def test_events_are_a_line_for_every_row_and_every_pair(tinytf: Tinytf) -> None:
    arguments = ("ablate", "--pairs", PLACES, "--sweep", "ffn", "--where", "verb=hid")
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    pairs = [event for event in events if event["type"] == "pair"]
    assert [event["line"] for event in pairs] == list(range(1, 25, 2))
    assert [event["name"] for event in events if event["type"] == "row"] == [f"L{layer}.ffn" for layer in range(4)]
    means = [sum(column) / len(pairs) for column in zip(*(event["change"] for event in pairs), strict=True)]
    rows = [event["change"]["value"] for event in events if event["type"] == "row"]
    assert rows == pytest.approx(means)
    table = list(csv.DictReader(io.StringIO(tinytf(*arguments, "--format", "csv").out)))
    assert [float(row["change.value"]) for row in table] == pytest.approx(means)


def test_tensors_name_their_rows_and_lines(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "heads.safetensors"
    assert tinytf("patch", "--pairs", PLACES, "--sweep", "heads", "-o", path).status == 0
    with safe_open(path, "pt") as file:
        metadata = json.loads(file.metadata()["tinytf"])
        assert file.get_tensor("moved").shape == (24, 16)
        assert file.get_tensor("map.recovered").shape == (4, 4)
    assert metadata["rows"][5] == "L1H1"
    assert metadata["lines"] == list(range(1, 25))


def test_a_table_of_commas_or_tabs_gives_the_same_answer(tinytf: Tinytf, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in PLACES.read_text("utf-8").splitlines()]
    for separator, name in ((",", "pairs.csv"), ("\t", "pairs.tsv")):
        with open(tmp_path / name, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)
        data, expected = (
            json.loads(tinytf("score", "--pairs", path, "--json").out) for path in (tmp_path / name, PLACES)
        )
        assert data["rows"] == expected["rows"]
        for example, its_line in zip(data["examples"], expected["examples"], strict=True):
            assert example.pop("line") == its_line.pop("line") + 1  # below the header
            assert example["pair"].pop("number") == its_line["pair"].pop("number") + 1
        assert data["examples"] == expected["examples"]


def test_an_example_shows_the_end_of_its_text_and_no_control_characters(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    row = {
        "clean": f"{'It was late. ' * 9}The \x1b[31mcat lost the",
        "corrupt": "The dog lost the",
        "answer": " hat",
        "versus": " ball",
    }
    path.write_text(json.dumps(row), "utf-8")
    ran = tinytf("score", "--pairs", path)
    assert "\x1b" not in ran.out
    assert "cat lost the" in ran.out
    assert "It was late. It was late. It was late. It was late. It" not in ran.out


WRONG = {
    "TEXT does not go with --pairs": ("lens", "The cat", "--pairs", PLACES),
    "CLEAN does not go with --pairs": ("patch", "The cat", "--pairs", PLACES),
    "CORPUS does not go with --pairs": ("heads", "book.txt", "--pairs", PLACES),
    "there is no --pairs": ("score", "The cat", "--where", "verb=hid"),
    "'verbs=hid' is not a column": ("score", "--pairs", PLACES, "--where", "verbs=hid"),
    "--position does not go with --pairs": ("attribute", "--pairs", PLACES, "--position", "1"),
    "cannot read cat": ("attribute", "--pairs", PLACES, "--versus", "cat"),
    "--versus compares with --pairs": ("lens", "The cat", "--versus", PLACES),
    "each pair has an answer of its own": ("patch", "--pairs", PLACES, "--answer", "cat"),
    "--chat does not go with --pairs": ("lens", "--pairs", PLACES, "--chat"),
    "--without does not go with --pairs": ("ablate", "--pairs", PLACES, "--without", "mask"),
    "--position goes with --at": ("patch", "--pairs", PLACES, "--position", "2"),
    "is not a table of pairs": ("lens", "--pairs", "README.md"),
    "CORRUPT, the text to patch, is missing": ("patch",),
    "line 1 of": ("score", "--pairs", PLACES, "-m", "tiny-encoder"),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_go_together_is_refused_in_one_line(tinytf: Tinytf, message: str) -> None:
    ran = tinytf(*WRONG[message])
    assert ran.status == 2
    assert is_a_clean_error(ran)
    assert message in ran.err
    assert "hint: " in ran.err


def test_a_model_through_transformers_takes_no_pairs(tinytf: Tinytf, tmp_path: Path) -> None:
    library.load("tiny").export(tmp_path / "exported")
    ran = tinytf("lens", "--pairs", PLACES, "-m", tmp_path / "exported", "--through", "transformers")
    assert ran.status == 2
    assert "--pairs needs a model that tinytf computes itself" in ran.err


def test_a_session_asks_its_own_model_about_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"score --pairs {PLACES} --json"
    assert run(["repl", "-c", line, "-c", "run The cat sat", "-c", "without L1H1", "-c", line]) == 0
    found = re.findall(r'^ "lead": (\{.*\}),$', capsys.readouterr().out, re.MULTILINE)
    whole, without = (json.loads(lead)["clean"]["value"] for lead in found)
    change = library.load("tiny").ablate_over(PLACES, "L1H1").quantities[0].means[0].value
    assert without - whole == pytest.approx(change, abs=1e-3)
