"""tinytf learn, where nobody presses keys: lessons as text and data, their list, and what it refuses."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from driving import SENTENCE, WIDE, Tinytf, is_a_clean_error
from rich.cells import cell_len

from tinytf.learn import NAMES, OF_ANY, TITLES
from tinytf.learn.course import lesson
from tinytf.learn.live import Live
from tinytf.loading import load


def learn(tinytf: Tinytf, *arguments: str | Path, model: Path, **given: Any) -> Any:
    return tinytf("learn", *arguments, "-m", model, "--text", SENTENCE, **given)


def test_without_a_terminal_all_lessons_are_printed_in_their_order(tinytf: Tinytf, decoder: Path) -> None:
    ran = learn(tinytf, model=decoder)
    assert ran.status == 0, ran.err
    assert ran.err == ""
    headings = [line for line in ran.lines if line[:1].isdigit()]
    assert headings == [
        f"{place} {name}   {title}" for place, (name, title) in enumerate(TITLES.items(), 1) if name in OF_ANY
    ]


def test_the_answer_follows_the_question_and_its_choices(tinytf: Tinytf, decoder: Path) -> None:
    out = learn(tinytf, "scores", model=decoder).out
    asked = lesson("scores", Live(load(str(decoder)), SENTENCE)).question
    for place, choice in enumerate(asked.choices, 1):
        assert f"{place} {choice}" in out
    assert out.index("predict") < out.index(f"1 {asked.choices[0]}") < out.index(f"answer   {asked.answer + 1}  ")


def test_a_lesson_is_found_by_its_number_or_name(tinytf: Tinytf, decoder: Path) -> None:
    by_number = learn(tinytf, "9", model=decoder)
    assert by_number.out == learn(tinytf, "Softmax", model=decoder).out
    assert "9 softmax" in by_number.out
    assert "10 values" not in by_number.out


def test_the_list_names_all_lessons_without_opening_a_model(tinytf: Tinytf) -> None:
    ran = tinytf("learn", "--list", "-m", "nothing-like-it")
    assert ran.status == 0
    assert [line.split()[:2] for line in ran.lines[1:]] == [[str(i), name] for i, name in enumerate(NAMES, 1)]
    data = json.loads(tinytf("learn", "--list", "--json").out)
    assert [(one["name"], one["title"]) for one in data["lessons"]] == list(TITLES.items())


def test_the_list_has_the_score_until_it_is_reset(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / "tinytf" / "learn.json"
    place.parent.mkdir()
    place.write_text('{"lesson": 3, "answers": {"mask": true, "softmax": false}}', "utf-8")
    ran = tinytf("learn", "--list")
    assert ran.lines[0] == f"1 of 2 answered right; there are {len(NAMES)}."
    marks = {line.split()[1]: line.split()[2] for line in ran.lines if line.split()[2:3] in (["✓"], ["✗"])}
    assert marks == {"mask": "✓", "softmax": "✗"}
    lessons = json.loads(tinytf("learn", "--list", "--json").out)["lessons"]
    assert {one["name"]: one["right"] for one in lessons if one["right"] is not None} == {
        "mask": True,
        "softmax": False,
    }
    assert tinytf("learn", "--reset").status == 0
    assert json.loads(place.read_text("utf-8")) == {"lesson": None, "answers": {}}
    assert not {"✓", "✗"} & set(tinytf("learn", "--list").out)
    place.write_text("[", "utf-8")
    broken = tinytf("learn", "--list")
    assert broken.status == 0
    assert broken.err.count("\n") == 1
    assert str(place) in broken.err


@pytest.mark.parametrize(
    ("word", "said", "hint"),
    [
        ("28", "there is no lesson 28: there are 27", "the nearest is 27, cross-attention"),
        ("0", "there is no lesson 0", "the nearest is 1, tokens"),
        ("9" * 400, "there is no lesson 999999999999", "the nearest is 27"),
        ("sofmax", "there is no lesson 'sofmax'", "did you mean softmax?"),
        ("\x1b[31mred", "there is no lesson", "tinytf learn --list"),
    ],
)
def test_a_lesson_that_there_is_not_is_one_line_and_a_hint(tinytf: Tinytf, word: str, said: str, hint: str) -> None:
    ran = tinytf("learn", "--", word)
    assert is_a_clean_error(ran)
    assert said in ran.err
    assert hint in ran.err


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(learn(tinytf, "--json", model=decoder).out)
    live = Live(load(str(decoder)), SENTENCE)
    assert data["kind"] == "learn"
    assert [one["name"] for one in data["lessons"]] == list(OF_ANY)
    softmax = dict(data["lessons"][8])
    values = softmax.pop("values")
    assert softmax == json.loads(json.dumps(asdict(lesson("softmax", live))))
    assert values["L0H0.masked"][0][1] is None
    assert sum(values["L0H0.weights"][3]) == pytest.approx(1, abs=1e-6)
    events = [json.loads(line) for line in learn(tinytf, "--format", "ndjson", model=decoder).lines]
    assert [{"type": "lesson", **one} for one in data["lessons"]] == [e for e in events if e["type"] == "lesson"]


@pytest.mark.share(4)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_a_screen(tinytf: Tinytf, decoder: Path, encoder: Path, width: int) -> None:
    for model in (decoder, encoder):
        ran = learn(tinytf, "--width", str(width), model=model, screen=True)
        assert ran.status == 0, ran.err
        assert "\x1b[?1049h" not in ran.out  # standard input is no terminal, so nothing waits for keys
        assert (
            max(map(cell_len, learn(tinytf, "--width", str(width), "--color", "never", model=model, screen=True).lines))
            <= width
        )


def test_ascii_is_seven_bits_and_plain_is_sentences(tinytf: Tinytf, decoder: Path) -> None:
    assert learn(tinytf, "--ascii", model=decoder).data.isascii()
    plain = learn(tinytf, "softmax", "--plain", model=decoder).out
    assert "predict: The scaled scores of query 2" in plain
    assert "█" not in plain


@pytest.mark.parametrize("text", [*WIDE.values(), "\x1b[31mred\x1b[0m \u202e", "x", "cat " * 60])
def test_strange_texts_are_learned_from(tinytf: Tinytf, characters: Path, decoder: Path, text: str) -> None:
    ran = tinytf("learn", "-m", decoder, "--text", text, "--truncate")
    assert ran.status == 0, ran.err
    assert "\x1b" not in ran.out


def test_an_empty_text_is_refused(tinytf: Tinytf, decoder: Path) -> None:
    assert is_a_clean_error(tinytf("learn", "-m", decoder, "--text", " "))


def test_a_text_comes_from_a_pipe_too(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("learn", "1", "-m", decoder, "--text", "-", "--json", stdin=b"The dog saw\n")
    assert json.loads(ran.out)["text"] == "The dog saw"


def test_files_are_written_in_every_format(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    for name, start in (("a.txt", "decoder"), ("a.svg", "<svg"), ("a.html", "<!DOCTYPE"), ("a.json", "{")):
        assert learn(tinytf, "7", "-o", tmp_path / name, model=decoder, screen=True).status == 0
        assert (tmp_path / name).read_text("utf-8").startswith(start)


def test_the_list_of_lessons_needs_no_torch() -> None:
    code = "import sys; from tinytf_cli.main import run; run(['learn', '--list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_teaching_tells_every_step_of_one_way_and_where_to_read_on(tinytf: Tinytf, decoder: Path) -> None:
    out = tinytf("trace", SENTENCE, "-m", decoder, "--teach", "--layer", "1", "--head", "0").out
    live = Live(load(str(decoder)), SENTENCE, place=(1, 0))
    said = " ".join(out.split())
    places = []
    for name in ("tokens", "embeddings", "qkv", "scores", "softmax", "values", "concat", "feed-forward", "logits"):
        told = lesson(name, live)
        assert said.count(" ".join(told.why.split())) == 1, name
        places.append(out.index(told.title))
        assert " ".join(told.pytorch.split()) in said
    assert places == sorted(places)
    assert "one way through: layer 1, head 0, token" in out
    assert "L1H0.weights" in out
    assert "L0." not in out
    assert out.rindex("tinytf learn NAME") > places[-1]


@pytest.mark.parametrize("option", [("--pipeline",), ("--at", "L0.q"), ("--step", "q"), ("--block", "L1"), ("--all",)])
def test_teaching_goes_with_nothing_else(tinytf: Tinytf, decoder: Path, option: tuple[str, ...]) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder, "--teach", *option)
    assert is_a_clean_error(ran)
    assert "--teach tells one way through a pass" in ran.err


def test_a_lesson_of_two_stacks_takes_the_translator_unless_a_model_is_named(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("learn", "cross-attention")
    assert ran.status == 0, ran.err
    assert ran.err == "tinytf: target, generated: 1994-05-03\n"
    assert ran.out.startswith("tiny-translator")
    assert "Which token of the source does head" in " ".join(ran.out.split())
    given = tinytf("learn", "26", "--text", "the fourth of June 1995", "--target-text", "1995-06-04", "--json")
    assert given.err == ""
    assert json.loads(given.out)["text"] == "1995-06-04"
    refused = tinytf("learn", "cross-attention", "-m", decoder)
    assert is_a_clean_error(refused)
    assert "lesson cross-attention is about two stacks" in refused.err
    assert "tinytf learn cross-attention -m tiny-translator" in refused.err
    assert "goes with a model of two stacks" in tinytf("learn", "1", "-m", decoder, "--target-text", "x").err


def test_a_model_of_two_stacks_has_every_lesson(tinytf: Tinytf) -> None:
    ran = tinytf("learn", "-m", "tiny-translator", "--json", "--target-text", "1994-05-03")
    assert [one["name"] for one in json.loads(ran.out)["lessons"]] == list(NAMES)
