"""Code, activations, runs without a part of attention, and info of positions, on any stream and in every form."""

import json
import re

import pytest
from driving import Tinytf, is_a_clean_error, without_colour
from rich.cells import cell_len

from tinytf.loading import load

SAID = "The cat sat"
EVERY = [
    ("trace", "--code", SAID),
    ("trace", "--curve", SAID),
    ("ablate", SAID, "--without", "scaling", "--without", "positions"),
    ("info", "tiny", "--positions"),
    ("info", "tiny-encoder", "--positions"),
]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_each_fits_a_narrow_screen_and_is_whole_in_a_pipe(tinytf: Tinytf, words: tuple[str, ...]) -> None:
    narrow = tinytf(*words, "--width", "60", "--ascii", screen=True)
    assert narrow.status == 0, narrow.err
    assert narrow.out.isascii()
    assert max(cell_len(without_colour(line)) for line in narrow.lines) <= 60
    piped = tinytf(*words)
    assert "…" not in piped.out.replace("| … |", "")
    assert "checked" in piped.out or "--curve" in words


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_each_is_data_events_and_sentences_too(tinytf: Tinytf, words: tuple[str, ...]) -> None:
    data = json.loads(tinytf(*words, "--json").out)
    events = [json.loads(line) for line in tinytf(*words, "--format", "ndjson").lines]
    assert events[0]["type"] == data["kind"]
    assert len(events) > 2
    assert not re.search("[░▒▓█▁▂▃▅▆▇│]", tinytf(*words, "--plain").out)


@pytest.mark.parametrize("part", [("--pipeline",), ("--block", "L1H1")], ids=" ".join)
@pytest.mark.parametrize("other", [("--at", "L0.weights"), ("--step", "weights")], ids=" ".join)
def test_a_part_of_the_trace_beside_something_else_is_refused(
    tinytf: Tinytf, part: tuple[str, ...], other: tuple[str, ...]
) -> None:
    assert is_a_clean_error(tinytf("trace", SAID, *part, *other))


def test_a_missing_part_says_what_becomes_of_the_prediction(tinytf: Tinytf) -> None:
    text = "The cat [MASK] on the mat"
    ran = tinytf("ablate", text, "-m", "tiny-encoder", "--without", "positions")
    assert "the prediction becomes the where it was sat" in ran.out
    rows = [line.split() for line in ran.lines if line.endswith(("0.142", "0.148"))]
    assert [(row[0], row[2]) for row in rows] == [("nothing", "known"), ("positions", "lost")]
    assert float(rows[1][1]) < 1e-4 < float(rows[0][1])


def test_masked_cells_are_drawn_where_the_mask_is_and_only_there(tinytf: Tinytf) -> None:
    lines = tinytf("ablate", SAID, "--without", "mask", "--width", "100").lines
    maps = lines[next(place for place, line in enumerate(lines) if line.startswith("  whole")) :]
    middle = maps[0].index("without mask")
    numbers = [[len(re.findall(r"\d\.\d\d", half)) for half in (line[:middle], line[middle:])] for line in maps[2:5]]
    assert numbers == [[1, 3], [2, 3], [3, 3]]


def test_the_head_whose_maps_are_shown_can_be_chosen(tinytf: Tinytf) -> None:
    out = tinytf("ablate", SAID, "--without", "mask", "--head", "L1H2").out
    assert re.search(r"^L1H2\.weights   0\.\d\d of its weight moved$", out, re.MULTILINE)
    assert "of all heads the one that moves most" in tinytf("ablate", SAID, "--without", "mask").out


def test_the_code_runs_as_it_is_printed(tinytf: Tinytf) -> None:
    """Of one layer: from the block's input and the parameters to its output."""
    model = load("tiny")
    trace, layer = model.trace(SAID), model.transformer.blocks[1]
    printed = tinytf("trace", "--code", SAID, "--layer", "1", "--width", "200").lines
    first = printed.index("import torch, torch.nn.functional as F")
    lines = [line for line in printed[first:] if line and not line.startswith("checked")]
    names = {"L0_out": trace["L0.out"], "L3_out": trace["L3.out"], "E": model.transformer.embed.tokens.weight}
    names |= {"embed_scale": model.config.embed_scale, "final_norm_gain": model.transformer.final_norm.weight}
    paths = {"W_Q": "attention.q", "W_K": "attention.k", "W_V": "attention.v", "W_O": "attention.o",
             "ffn_W_up": "ffn.up", "ffn_W_gate": "ffn.gate", "ffn_W_down": "ffn.down", "norm1_gain": "norm1",
             "norm2_gain": "norm2"}  # fmt: skip
    for name, path in paths.items():
        module = layer.get_submodule(path)
        names |= {name: module.weight, "b" + name[1:]: getattr(module, "bias", None)}
    exec("\n".join(lines), names)
    assert (names["out"] - trace["L1.out"]).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ablate", "--without", "mask", "--sweep", "heads"), "--sweep and --without ask for two things at once"),
        (("ablate", "--without", "mask", "--how", "mean"), "--without compares two whole predictions"),
        (("ablate", "--at", "L0H1", "--head", "L1H1"), "--head goes with --without"),
        (("ablate", "--without", "mask", "-m", "tiny-encoder"), "this model has no mask to leave out"),
        (("ablate", "--without", "heads"), "'heads' is not one of 'scaling', 'mask', 'positions'"),
        (("trace", "--curve", "--layer", "9"), "there is no layer 9"),
        (("trace", "--code", "--at", "next"), "no line of code computes next"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(tinytf: Tinytf, words: tuple[str, ...], said: str) -> None:
    ran = tinytf(words[0], SAID, *words[1:])
    assert is_a_clean_error(ran)
    assert said in ran.err
