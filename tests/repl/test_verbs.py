"""Each verb over a recorded trace: what it shows is what the library has."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from schemas import hold
from talking import SENTENCE, Talk

from tinytf.loading import load
from tinytf.steps.table import StepTable
from tinytf_cli.main import COMMANDS, EVERY


def data(text: str) -> dict:
    """JSON of a verb, held against its schema."""
    found = json.loads(text)
    hold(found)
    return found


@pytest.fixture(scope="module")
def tiny():  # type: ignore[no-untyped-def]
    return load("tiny", device="cpu")


def test_running_a_text_stands_at_its_first_step(talk: Callable[..., Talk]) -> None:
    begun = talk()
    assert begun.session.row is None
    assert "The│·cat" in begun("run The cat")
    assert (begun.session.row, begun.session.step_words) == (0, "tokens 1/92")


def test_moving_goes_through_the_step_table(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    rows = StepTable(tiny.config).rows
    names = [step.full_name(layer) for step, layer in rows]

    def name(line: str) -> str:
        ran(line)
        assert ran.session.row is not None
        return names[ran.session.row]

    assert name("step") == names[1]
    assert name("step 3") == names[4]
    assert name("") == names[7]
    assert name("back") == names[6]
    assert name("") == names[5]
    assert name("next") == "L0.in" or name("goto L0.in") == "L0.in"
    assert name("next") == "L1.in"
    assert name("finish") == "L1.out"
    assert name("finish") == "L2.out"
    assert name("goto L3H1.weights[1,0]") == "L3.weights"
    assert name("goto L0-2.q") == "L0.q"
    assert name("goto 3") == names[2]
    assert name("goto L3") == "L3.in"
    assert name("next") == "final.norm"
    assert name("finish") == "next"
    assert name("back 1000") == "tokens"
    assert name("continue") == "next"
    assert "this is the last step" in ran.fails("step").failure.message  # type: ignore[union-attr]


def test_where_and_list_tell_the_place_as_data(ran: Talk) -> None:
    ran("goto L1.weights")
    told = data(ran("where --json"))
    assert (told["text"], told["steps"], told["place"]["name"]) == (SENTENCE, 92, "L1.weights")
    listed = data(ran("list 7 --json"))
    assert [row["number"] for row in listed["steps"]] == list(
        range(told["place"]["number"] - 3, told["place"]["number"] + 4)
    )
    assert len(data(ran("list 10000 --json"))["steps"]) == 92


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "address", ["L0H1.weights", "L2.q", "L3.ffn", "logits", "L0-1H*.scores", "embed.out", "L1H0.q[sat]"]
)
def test_print_gives_the_tensors_of_the_trace(ran: Talk, tiny, address: str) -> None:  # type: ignore[no-untyped-def]
    trace = tiny.trace(SENTENCE)
    found = data(ran(f"print/json {address}"))["values"]
    expected = trace.recorded_logits if address == "logits" else trace[address]
    values = [np.nan_to_num(np.array(one["values"], dtype=float)) for one in found.values()]  # null: masked
    np.testing.assert_allclose(np.stack(values).ravel(), expected.numpy().ravel(), atol=1e-5)


def test_print_in_every_form(ran: Talk) -> None:
    assert ran("print/shape L0H1.weights") == ran("print L0H1.weights /shape") == ran("p L0H1.weights/shape")
    assert ran("print/shape L0H1.weights").split() == ["L0H1.weights", "query", "5", "×", "key", "5"]
    assert "entropy" in ran("print/stats L0.weights")
    assert "entropy" not in ran("print/stats L0.ffn")
    ran("set dims 8")
    assert len(ran("print/values L0.ffn").splitlines()) > len(ran("print L0.ffn").splitlines())
    assert "there is no /colour" in ran.fails("print/colour L0").failure.message  # type: ignore[union-attr]


def test_the_figures_of_print_are_numpys(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    ran("set precision 4")
    values = tiny.trace(SENTENCE)["L1H2.q"].double().numpy()
    _, mean, largest, smallest, std, norm, *_ = ran("print/stats L1H2.q").splitlines()[1].split()
    expected = (values.mean(), values.max(), values.min(), values.std(), np.linalg.norm(values))
    assert [float(word) for word in (mean, largest, smallest, std, norm)] == pytest.approx(expected, abs=1e-4)


def test_a_step_without_a_layer_is_that_of_the_settings(ran: Talk) -> None:
    ran("set layer 2", "set head 3")
    assert ran("heat weights") == ran("heat L2H3.weights") == ran("heat L2H3")
    assert ran("print/shape ffn") == ran("print/shape L2.ffn")
    ran("goto L1.weights")
    assert ran("heat") == ran("heat L1H3")


def test_heat_draws_what_the_trace_command_draws(ran: Talk) -> None:
    drawn = ran("heat L0H0").splitlines()
    assert set(drawn) < set(ran("trace --at L0H0.weights").splitlines())


def test_print_and_heat_take_parameters(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    weight = dict(tiny.transformer.named_parameters())["blocks.0.attention.q.weight"]
    found = data(ran("print L0H1.W_Q /json"))["parameters"][0]
    assert np.array_equal(np.array(found["values"], dtype=np.float32), weight[32:64].T.detach())
    assert "L0H1.W_Q" in ran("heat L0H1.W_Q")
    assert "how many of 128 numbers" in ran("print/stats L0.norm1.gain")
    assert ran("print/values L0.W_Q").count("\n  d") > 127


def test_heads_are_measured_as_the_library_does(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    from tinytf.look.heads.measures import measure_heads

    trace = tiny.trace(SENTENCE)
    for by in ("entropy", "distance", "previous", "first", "self"):
        found = data(ran(f"heads --by {by} --json"))
        expected = measure_heads(trace, by).numpy()
        np.testing.assert_allclose(found["values"], expected, atol=1e-5)
        best = found["largest"][0]
        assert expected[best["layer"], best["head"]] == pytest.approx(expected.max(), abs=1e-5)
    assert data(ran("heads L1-2 --json"))["layers"] == [1, 2]


def test_top_is_the_softmax_of_the_logits(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    trace = tiny.trace(SENTENCE)
    logits = trace.logits_at(2).double().numpy()
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    found = data(ran("top 4 --at sat --json"))["predictions"][0]
    assert [one["id"] for one in found["top"]] == np.argsort(-expected)[:4].tolist()
    assert [one["probability"] for one in found["top"]] == pytest.approx(np.sort(expected)[::-1][:4].tolist(), abs=1e-5)
    assert len(data(ran("top --json"))["predictions"][0]["top"]) == 10


def test_explain_and_grad_are_the_commands_on_the_text_of_the_session(ran: Talk) -> None:
    assert ran("explain L0H0.scores[1,0]") == ran(f'explain L0H0.scores[1,0] "{SENTENCE}"')
    assert ran("grad L0H1.weights") == ran("grad --at L0H1.weights") == ran(f'grad --at L0H1.weights "{SENTENCE}"')
    assert "·dog" in ran("grad The dog sat --pipeline")


def test_info_and_tokens_are_those_of_the_open_model(ran: Talk) -> None:
    ran("model tiny-encoder")
    assert "\ntiny-encoder " in ran("info")
    assert "\ntiny-encoder " in ran("tokens")


def test_what_is_displayed_is_shown_after_each_movement(ran: Talk) -> None:
    shown = ran("display L0H0.weights[1,0]")
    assert ran("step").endswith(shown)
    assert ran("back").endswith(shown)
    assert ran("display").split() == ["1", "L0H0.weights[1,0]"]
    ran("display logits", "undisplay 1")
    assert ran("display").split() == ["1", "logits"]
    assert not ran("undisplay").startswith("1")
    assert not ran("step").endswith(shown)


def test_what_another_model_lacks_is_displayed_as_lacking(ran: Talk) -> None:
    ran("display L3.q_rot", "model tiny-encoder")
    assert "L3.q_rot: there is no layer 3" in ran("run The cat")


def test_a_stop_holds_where_its_condition_does(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    trace = tiny.trace(SENTENCE)
    ran("break L*.out if norm > 50")
    expected = [layer for layer in range(4) if float(trace.step("out", layer).norm()) > 50]
    assert len(expected) > 0
    found = []
    for _ in expected:
        ran("continue")
        found.append(ran.session.step_words.split()[0])
    assert found == [f"L{layer}.out" for layer in expected]
    assert "no stop held" in ran("continue")


def test_a_stop_that_never_held_says_how_close_it_came(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    largest = [tiny.trace(SENTENCE).step("ffn", layer).max().item() for layer in range(4)]
    layer = int(np.argmax(largest))
    ran(f"break L*.ffn if max > {max(largest) + 1}", "break L*.weights if max > 2 or max > 3", "tbreak L0.norm1")
    assert "stop 3" in ran("continue")
    *_, first, second = ran("continue").split("no stop held")[1].splitlines()[:3]
    assert re.search(rf"has not held; closest: max {max(largest):.4g} at L{layer}\.ffn\[", first)
    assert "closest" not in second


def test_a_condition_on_a_head_is_about_that_head(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    trace = tiny.trace(SENTENCE)
    entropy = [float(-(w * w.clamp_min(1e-30).log()).sum(-1).mean()) for w in trace["L0.weights"]]
    head = int(np.argmin(entropy))
    ran(f"break L0H{head}.weights if entropy < {entropy[head] + 1e-3}")
    ran("continue")
    assert ran.session.step_words.startswith("L0.weights")
    ran("delete", "goto 1", f"break L0H{head}.weights if entropy < {entropy[head] - 1e-3}")
    assert "no stop held" in ran("continue")


def test_steps_stop_on_the_way(ran: Talk) -> None:
    ran("break L0.q")
    assert "stop 1" in ran("step 50")
    assert ran.session.step_words.startswith("L0.q ")
    ran("goto 1")
    assert "stop 1" in ran("run")
    assert ran.session.step_words.startswith("L0.q ")


def test_watch_is_at_every_step_and_a_training_run_is_followed_by_the_command(ran: Talk, tmp_path: Path) -> None:
    ran("watch max > 3 and mean > 0")
    assert "stop 1: every step" in ran("continue")
    assert "break L0.q needs none" in ran.fails("watch L0.q").failure.hint  # type: ignore[union-attr]
    assert "tinytf runs lists the runs" in ran.fails(f"runs --follow '{tmp_path}'").failure.hint  # type: ignore[union-attr]


def test_undo_takes_back_what_changed_the_session_and_nothing_else(ran: Talk) -> None:
    before = ran.session.state
    ran("step 3", "heat L0H0")
    place = ran.session.row
    ran("set dims 3", "break L1", "display L0.q", "model tiny-encoder", "run The cat")
    assert ran.session.run is not None
    assert ran.session.run.text == "The cat"
    ran(*["undo"] * 5)
    assert ran.session.state == before
    assert ran.session.row == place
    ran("undo")
    assert "there is nothing to undo" in ran.fails("undo").failure.message  # type: ignore[union-attr]
    assert ran.session.run is None


def test_diff_compares_the_last_two_runs(ran: Talk) -> None:
    assert "there is one so far" in ran.fails("diff").failure.hint  # type: ignore[union-attr]
    ran("run The dog sat on the")
    assert ran("diff --top 3") == ran(f'diff "{SENTENCE}" "The dog sat on the" --top 3')
    ran("run A dog")
    for option in ("--head L1H1", "--all", "--full"):
        assert ran(f"diff {option}") == ran(f'diff "The dog sat on the" "A dog" {option}')
    ran("model tiny --dtype float64")
    assert ran("diff --rows 1") == ran('diff --dtype float32 --versus-dtype float64 "A dog" --rows 1')
    ran("undo", "model tiny-encoder")
    assert "different vocabularies" in ran.fails("diff").failure.message  # type: ignore[union-attr]


def test_settings_reach_commands_and_verbs(ran: Talk) -> None:
    ran("set width 70", "set dims 3")
    assert "d3" not in ran("print L0.ffn")
    assert "d3" not in ran("trace --at L0.ffn")
    assert "d4" in ran("trace --at L0.ffn --dims 5")
    ran("set ascii on")
    assert ran("heat L0H0").isascii()
    assert ran("attention").isascii()
    ran("set plain on")
    assert "Row ·cat" in ran("heat L0H0 --plain") or "Row .cat" in ran("heat L0H0")


def test_precision_and_colours_are_those_of_the_session_alone(ran: Talk) -> None:
    ran("set color always")
    viridis = ran("heat L0H0")
    assert "1.000" in viridis
    ran("set precision 1", "set colormap grey")
    assert "1.000" not in ran("heat L0H0")
    ran("set precision auto")
    assert ran("heat L0H0") != viridis
    ran("set colormap viridis")
    assert ran("heat L0H0") == viridis


@pytest.mark.share(4)
@pytest.mark.parametrize("name", [name for name in EVERY if name != "repl"])
def test_every_command_is_there_with_its_help(ran: Talk, name: str) -> None:
    assert f"Usage: {name} " in ran(f"{name} --help")
    assert "Usage: " in ran(f"help {name}") or name in ran.session.lexicon.verbs


@pytest.mark.slow
def test_every_verb_has_a_summary_examples_that_run_and_help(ran: Talk, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    ran("keep cat", "run The dog sat on the", "set dims 8", "display L0H0.weights", "break L1")
    (tmp_path / "look.session").write_text("show\n", "utf-8")
    for name, verb in ran.session.lexicon.verbs.items():
        assert verb.summary.endswith("."), name
        assert len(verb.summary) <= 67, "the overview fits 80 columns"
        assert verb.examples, name
        assert verb.examples[0] in ran(f"help {name}")
        for example in verb.examples:
            if name in ("quit", "save") or "preset" in example:
                continue
            ran("goto L1.q" if name != "undo" else "set rows 4")
            outcome = ran.session.execute(example)
            assert outcome.status == 0, (example, outcome)


def test_help_is_whole_on_a_narrow_screen(ran: Talk) -> None:
    for topic in ("", "lines", "keys", "scripts", "conditions", "addresses", "heads"):
        verb = ran(f"help {topic} --width 80").partition("\ntinytf ")[0]  # what follows there is from click
        assert max(map(len, verb.splitlines())) <= 80
        assert not any(line.endswith("…") for line in verb.splitlines())


def test_a_word_that_is_no_number_is_called_that(ran: Talk) -> None:
    assert ran.fails("step x").failure.message.endswith("'x' is not a whole number")  # type: ignore[union-attr]
    assert ran.fails("diff --tolerance x").failure.message.endswith("'x' is not a number")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("save", "FILE is missing", "such as: save look.session"),
        ("step 0", "N: 0 is not 1 or more", "such as: step, step 5"),
        ("list 99999", "N: 99999 is not from 1 to 10000", "such as: list, list 30"),
        ("step -1", "there is no option -1", "such as: step, step 5"),
        ("delete 0", "NUMBER: 0 is not 1 or more", "such as: delete 1, delete"),
        ("set precision 99", "precision takes auto or 0 to 9, not '99'", ""),
    ],
)
def test_words_that_a_verb_does_not_take_are_told_with_an_example(
    ran: Talk, line: str, message: str, hint: str
) -> None:
    failure = ran.fails(line).failure
    assert failure is not None
    assert (failure.message, failure.hint) == (message, hint)


def test_help_says_what_an_option_takes(ran: Talk) -> None:
    assert "--by  " in ran("help heads")
    assert "entropy, distance, previous, first, self" in ran("help heads --width 200")
    assert "One of auto, cpu, cuda, mps." in ran("help model --width 200")
    assert "--at TOKEN" in ran("help top")


@pytest.mark.parametrize("topic", ["", "keys", "lines", "conditions", "addresses", "scripts", "moving", "cond"])
def test_help_has_its_topics(ran: Talk, topic: str) -> None:
    assert len(ran(f"help {topic}").splitlines()) > 3
    assert "did you mean conditions?" in ran.fails("help conditons").failure.hint  # type: ignore[union-attr]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_screen(talk: Callable[..., Talk], width: int) -> None:
    begun = talk(terminal=True)
    begun(f"set width {width}", "set color never", 'run "I like 🐈 and a very long sentence about the cat"')
    lines = ["where", "list", "print/stats L0.weights", "print/shape L0", "heat L0.ffn", "heat L0H0.q", "heat logits"]
    lines += ["heads", "top", "step 9", "show", "help", "help break", "history", "run the cat", "diff", "break"]
    for line in lines:
        for row in begun(line).splitlines():
            assert cell_len(row) <= width, (line, row)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_verbs_work_on_every_shape_of_model(kind: str, talk: Callable[..., Talk]) -> None:
    begun = talk({"encoder": "preset:bert-base", "decoder": "preset:llama-tiny"}[kind])
    begun("run The cat")
    for line in ("step 12", "next", "finish", "heat L0H0", "heat L0.k", "print/stats L1", "heads", "finish", "list"):
        assert begun(line).strip(), line


def test_words_that_a_verb_does_not_take_are_for_the_command_of_its_name(ran: Talk) -> None:
    session = ran.session
    for words in ("heads", "heads L3", "heads --by entropy L0-1", "heads --json", "diff", "diff --top 3", "watch nan"):
        assert session.lexicon.verb_for(words.split()) is session.lexicon.verbs[words.split()[0]], words
    for words in ("heads lorem.txt", "heads --count 3", "heads L0 corpus", "heads --by induction", "heads --by=offset"):
        assert session.lexicon.verb_for(words.split()) is None, words
    for words in ("diff a b", "diff --seed 3", "diff --versus tiny"):
        assert session.lexicon.verb_for(words.split()) is None, words
    assert "induction" in ran("heads --by induction --random --count 1 --top 1")


LONG = "The cat sat on the mat and the dog ran to the door and the man went to the park"


def test_every_number_that_was_asked_for_is_written_on_a_narrow_screen_too(talk: Callable[..., Talk], tiny) -> None:  # type: ignore[no-untyped-def]
    seen = talk(terminal=True)
    seen("set width 40", "set color never", f'run "{LONG}"')
    trace = tiny.trace(LONG)
    text = seen("print L1H2.weights /values")
    assert "each cell shows" not in text
    short = seen("print L1H2.weights")
    assert text.split("looks at")[0] == short.split("looks at")[0], "a map of up to 1,000 numbers needs no /values"
    assert "each cell shows" in seen("heat L1H2.weights")
    numbers = re.findall(r"\d\.\d{3}(?=[ ░▒▓█])", text)
    rows = trace["L1H2.weights"].numpy()
    expected = [f"{rows[q, k]:.3f}" for q in range(len(rows)) for k in range(q + 1)]
    assert sorted(numbers) == sorted(expected)


def test_print_takes_the_rows_that_it_hints_at(talk: Callable[..., Talk]) -> None:
    seen = talk(terminal=True)
    seen("set color never", f'run "{LONG}"')
    assert "--rows 0 shows them" in seen("print L1.out")
    assert "folded" not in seen("print L1.out --rows 0")
    assert "folded: 18 of 20 tokens" in seen("print L1.out --rows 2")
    assert "folded: 2,046 of 2,048 rows" in seen("print E --rows 2")
    seen.fails("print L1.out --rows -1")


def test_goto_keeps_the_head_that_it_names(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    trace = tiny.trace(SENTENCE)
    ran("goto L1H2.weights")
    assert ran.session.step_words == "L1H2.weights 36/92"
    values = data(ran("print/json"))["values"]["L1H2.weights"]["values"]
    seen = np.nan_to_num(np.array(values, dtype=float))  # null: masked
    np.testing.assert_allclose(seen, trace["L1H2.weights"], atol=1e-6)
    ran("next", "step 4")
    assert ran("heat").strip().startswith("L2H2.")
    ran("goto L2.weights")
    assert ran("heat").strip().startswith("L2H0.weights")
    ran("goto L3", "print")
    assert ran("undo").startswith("undone: run")


@pytest.mark.parametrize("line", ["break ids if max > 3", "break tokens if nan", "watch next if max > 1"])
def test_a_condition_on_a_step_without_numbers_is_refused(ran: Talk, line: str) -> None:
    outcome = ran.fails(line)
    assert outcome.failure is not None
    assert "has no numbers" in outcome.failure.message
    assert ran("break") == "there are no stops\n"


def test_each_head_that_a_stop_names_is_looked_at_alone(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    weights = tiny.trace(SENTENCE)["L1.weights"].double()
    entropy = [float(torch.special.entr(head).sum(-1).mean()) for head in weights]
    low = [head for head, value in enumerate(entropy) if value < 0.45]
    assert 0 < len(low) < 4
    ran("break L1H*.weights if entropy < 0.45")
    said = " ".join(ran("continue").split())
    assert re.findall(r"of L1H(\d)|at L1H(\d)", said) == [("", str(head)) for head in low]


def test_a_stop_leaves_out_rows_and_watches_one_cell(ran: Talk, tiny) -> None:  # type: ignore[no-untyped-def]
    trace = tiny.trace(SENTENCE)
    ran("break L*.weights[1:] if max > 0.999")
    holds = [layer for layer in range(4) if float(trace[f"L{layer}.weights"][:, 1:].max()) > 0.999]
    assert 0 < len(holds) < 4
    assert [ran("continue").startswith("stop 1") for _ in (*holds, None)] == [*(True for _ in holds), False]
    ran("delete", "goto 1")
    cell = float(trace["L1H2.weights"][4, 1])
    assert ran(f"watch L1H2.weights[4,cat] > {cell - 1e-3:.6f}").startswith("stop 1: L1H2.weights if ")
    assert f": {cell:.4g} at L1H2.weights[4,1], query ·the, key ·cat" in " ".join(ran("continue").split())
    ran.fails("break L1H2.weights[4,cat]")
    assert ran("watch 3 > 2") == "stop 2: every step if 3 > 2\n"
    ran.fails("break L1.weights[dog] if max > 1")


def test_a_sentence_alone_is_run_and_a_slip_is_not(ran: Talk) -> None:
    assert "The│·cat│'s│·hat" in ran("The cat's hat sat")
    assert str(ran.session.require_text()) == "The cat's hat sat"
    for line in ("stpe 3 4", "braek L1.weights if max > 3", "The cat"):
        outcome = ran.fails(line)
        assert outcome.failure is not None
        assert "there is no verb or command" in outcome.failure.message
    assert outcome.failure is not None
    assert outcome.failure.hint.endswith("run The cat")


def test_help_fits_a_screen_and_a_topic_says_a_line_a_name(ran: Talk) -> None:
    overview = ran("help --width 80")
    assert len(overview.splitlines()) <= 24
    for name, verb in ran.session.lexicon.verbs.items():
        assert re.search(rf"\b{name}\b", overview)
        assert any(line.split()[:1] == [name] for line in ran(f"help {verb.topic}").splitlines())
    listed = {line.split()[0] for line in ran("help commands --width 200").splitlines()[2:]}
    assert listed == set(COMMANDS) - {"repl"}


def test_a_stop_that_holds_once_is_gone_then(ran: Talk) -> None:
    assert ran("tbreak L*.weights if max > 0") == "stop 1: L0-3.weights, once, if max > 0\n"
    assert "stop 1: " in ran("continue")
    assert ran("break") == "there are no stops\n"
    assert "no stop held" in ran("continue")


def test_a_map_and_a_table_go_to_csv(ran: Talk, tmp_path: Path) -> None:
    """The last output may follow on a line of its own; the labels are the tokens."""
    path, weights = tmp_path / "h.csv", ran.session.trace["L1H2.weights"]
    for line in (f"heat L1H2 > {path}", f"> {path}"):
        ran(line)
        first, *rows = csv.reader(path.open(encoding="utf-8"))
        names = [f"{place} {token}" for place, token in enumerate(ran.session.tokens)]
        assert first == ["query/key", *names]
        assert [row[0] for row in rows] == names
        for place, (_, *cells) in enumerate(rows):  # a key that is not seen is empty, as of attention
            assert [float(cell) for cell in cells[: place + 1]] == pytest.approx(weights[place, : place + 1].tolist())
            assert set(cells[place + 1 :]) <= {""}
    ran(f"top 3 > {path}")
    best = list(csv.DictReader(path.open(encoding="utf-8")))
    assert [int(one["id"]) for one in best] == ran.session.trace.logits_at(4).topk(3).indices.tolist()
    ran(f"print logits[-1] > {path}")
    row = list(csv.DictReader(path.open(encoding="utf-8")))[int(best[0]["id"])]
    assert row["vocab"] == f"{best[0]['id']} {best[0]['token']}"


def test_what_has_no_table_is_no_csv(ran: Talk, tmp_path: Path) -> None:
    for line in ("where", "help"):
        failure = ran.fails(f"{line} > {tmp_path / 'h.csv'}").failure
        assert failure is not None
        assert "there is no table" in failure.message
    assert not list(tmp_path.iterdir())


def test_a_format_that_is_not_written_is_refused(ran: Talk, tmp_path: Path) -> None:
    ran.fails(f"heat L0H0 > '{tmp_path / 'h.tsv'}'")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "columns", "first"),
    [
        ("print L1H2.weights[cat] --width 120", ["The", "·cat", "·sat", "·on", "·the"], None),
        ("print L1.weights[cat] --width 120", ["The", "·cat", "·sat", "·on", "·the"], "H0"),
        ("print logits[-1] --width 160", ["!", '"', "#", "$"], None),
        ("print probs --width 160", ["!", '"', "#", "$"], "·the"),
        ("print L0-1.out[cat] --width 120", ["d0", "d1", "d2"], "L0"),
        ("heat L1H2.weights[cat] --width 120", ["The", "·cat", "·sat", "·on", "·the"], None),
    ],
)
def test_rows_and_columns_are_named_by_what_they_are(
    ran: Talk, line: str, columns: list[str], first: str | None
) -> None:
    header, row = ran(line).splitlines()[2:4]
    found = header.split()
    start = found.index(columns[0])
    assert found[start : start + len(columns)] == columns
    if first is not None:
        assert row.split()[0] == first


def test_the_columns_of_a_vocabulary_are_its_tokens_in_order(ran: Talk) -> None:
    header, row = ran("print logits[-1] --width 200 --precision 3").splitlines()[2:4]
    tokenizer, logits = ran.session.model.tokenizer, ran.session.trace.logits_at(4)
    assert header.split()[1:8] == [tokenizer.shown(place) for place in range(1, 8)]
    assert row.split()[1:9] == [f"{value:.3f}" for value in logits[:8].tolist()]


def test_a_stop_at_heads_is_at_the_steps_that_heads_have(ran: Talk) -> None:
    ran("break L1H2", "run")
    first = next(at for at, (step, layer) in enumerate(ran.session.table.rows) if layer == 1 and step.has_heads)
    assert ran.session.row == first
    ran("delete", "break L1H* if max > -100", "run")
    places = []
    while "stop 1" in ran("continue"):
        places.append(ran.session.row)
    having = [at for at, (step, layer) in enumerate(ran.session.table.rows) if layer == 1 and step.has_heads]
    assert [first, *places] == having


def test_a_comparison_without_an_address_is_of_every_step(ran: Talk) -> None:
    assert ran("break L1H2.weights[the,cat] > 0.01") == "stop 1: L1H2.weights if L1H2.weights[the,cat] > 0.01\n"
    assert ran("tbreak norm > 50") == "stop 2: every step, once, if norm > 50\n"


def test_what_is_read_of_a_token_is_refused_at_a_step_that_predicts_none(ran: Talk) -> None:
    failure = ran.fails("break L1H2.weights if prob(mat) > 0.5").failure
    assert failure is not None
    assert failure.message == "weights predicts no token"
    ran("break L*.out if rank(' mat') == 1", "run")
    by_lens = ran.session.trace.steps.rows[ran.session.row or 0]
    assert by_lens[0].name == "out"


def test_a_stop_names_the_token_of_the_vocabulary_where_it_held(ran: Talk) -> None:
    best = ran.session.model.shown(int(ran.session.trace["probs"][-1].argmax()))
    ran("break probs if max > 0.1")
    assert f"vocab {best}" in ran("run")


@pytest.mark.slow
def test_no_command_alone_on_a_line_is_a_fault(ran: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures = {name: ran.session.execute(name).failure for name in EVERY}
    assert [name for name, failure in failures.items() if failure and "fault of tinytf" in failure.hint] == []
