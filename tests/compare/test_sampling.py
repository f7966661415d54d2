"""Two programs' settings: their processed logits beside transformers' own and numpy's, and why choices part."""

import json
import math
import sys
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked

sys.path += [str(Path(__file__).parents[1] / "parity")]

from reference import saved

import tinytf
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.compare.sampling import CHOICE, DISTANCE, END, SET, SamplingDifference, diff_sampling
from tinytf.errors import UsageError
from tinytf.generate.programs import PROGRAMS, Choosing, Place, Settings, differing, processed, read_settings
from tinytf.sentences import percent

TEXT = "The dog lost the red ball. The dog lost the"
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.3, "top_p": 0.6, "min_p": 0.1},
    {"repetition_penalty": 1.4, "top_k": 12, "typical_p": 0.7},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 5, "temperature": 2.0},
    {},
]


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


def written(path: Path, **settings: Any) -> str:
    path.write_text(json.dumps(settings), "utf-8")
    return str(path)


@pytest.mark.parametrize("settings", [*({"do_sample": True, **one} for one in SAMPLED), {"repetition_penalty": 1.3}])
@torch.no_grad()
def test_what_transformers_draws_from_is_what_its_generate_says(settings: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    folder = saved("llama, biases everywhere")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ours = asked(read_directory(folder).load().transformer).transformer
    prompt = [3, 14, 15, 9, 2, 6, 5, 3, 14]
    torch.manual_seed(3)
    config = transformers.GenerationConfig(**settings, eos_token_id=[1, 7], pad_token_id=0, max_new_tokens=9)
    made = theirs.generate(torch.tensor([prompt]), generation_config=config, output_scores=True,
                           return_dict_in_generate=True)  # fmt: skip
    ids = made.sequences[0].tolist()
    how = read_settings(written(tmp_path / "generation_config.json", **settings, eos_token_id=[1, 7])).how
    assert len(made.scores) == len(ids) - len(prompt)
    for end, scores in enumerate(made.scores, len(prompt)):
        row = processed(ours(torch.tensor([ids[:end]]))[0, -1], how, Place(ids[:end], len(prompt), ()))
        if settings.get("do_sample"):
            torch.testing.assert_close(row.softmax(-1), scores[0].softmax(-1), rtol=1e-4, atol=1e-6)
            assert torch.equal(row.isfinite(), scores[0].isfinite())
        else:
            assert int(row.argmax()) == int(scores[0].argmax())


def in_numpy(logits: np.ndarray, how: Choosing, ids: list[int], prompt: int) -> np.ndarray:
    """The probabilities after vLLM's or llama.cpp's processors, from their definitions, one after the other."""
    x = logits.astype(np.float64).copy()
    window = ids if how.repeat_last_n == -1 else ids[len(ids) - how.repeat_last_n :]

    def softmax() -> np.ndarray:
        shares = np.exp(x - x.max())
        return np.asarray(shares / shares.sum())

    for name in how.order:
        if name == "penalties":
            for one in set(window):
                x[one] = x[one] / how.repetition_penalty if x[one] > 0 else x[one] * how.repetition_penalty
            counted = ids[prompt:] if how.counted_tokens == "new tokens" else window
            for one in set(counted):
                x[one] -= counted.count(one) * how.frequency_penalty + how.presence_penalty
        elif name == "temperature":
            x = x / how.temperature
        elif name == "top_k" and how.top_k:
            x[np.argsort(-x)[how.top_k :]] = -np.inf
        elif name == "top_p":
            order = np.argsort(-x)
            kept = int((np.cumsum(softmax()[order]) < how.top_p).sum()) + 1
            x[order[kept:]] = -np.inf
        elif name == "min_p":
            shares = softmax()
            x[shares < how.min_p * shares.max()] = -np.inf
    return softmax()


@pytest.mark.parametrize("program", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("seed", range(6))
def test_the_processors_of_vllm_and_llama_cpp_are_applied_in_their_order(program: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, 60).astype(np.float32)
    ids = generator.integers(0, 60, 90).tolist()
    how = replace(
        PROGRAMS[program].defaults, temperature=1.6, top_k=30, top_p=0.8, min_p=0.04, repetition_penalty=1.3,
        frequency_penalty=0.2, presence_penalty=0.4,
    )  # fmt: skip
    ours = processed(torch.from_numpy(logits), how, Place(ids, 70)).double().softmax(-1).numpy()
    np.testing.assert_allclose(ours, in_numpy(logits, how, ids, 70), atol=1e-6)
    other = replace(how, order=PROGRAMS["vllm" if program == "llama.cpp" else "llama.cpp"].defaults.order)
    assert np.abs(in_numpy(logits, other, ids, 70) - ours).max() > 1e-3


def test_settings_are_read_as_each_program_reads_them(tmp_path: Path) -> None:
    path = written(tmp_path / "generation_config.json", do_sample=False, temperature=0.6, top_p=0.9, eos_token_id=2,
                   num_beams=4, pad_token_id=0, epsilon_cutoff=0.0)  # fmt: skip
    ours, vllm = read_settings(path), read_settings(f"vllm:{path}")
    assert (ours.program, ours.how.temperature, ours.how.top_k, ours.how.end_ids) == ("transformers", 0.0, 50, (2,))
    assert ours.unknown == ("transformers has num_beams 4, which is not compared",)
    assert (vllm.how.temperature, vllm.how.top_k, vllm.how.top_p) == (0.6, 0, 0.9)
    assert "vllm knows no do_sample" in vllm.unknown
    flags = read_settings(
        "--temp 0 --top-k=0 --repeat-penalty 1.1 --ignore-eos -m model.gguf --repeat-last-n -1 --dry x"
    )
    assert flags.program == "llama.cpp"
    assert flags.given == ("temperature", "top_k", "repetition_penalty", "ignore_eos", "repeat_last_n")
    assert (flags.how.temperature, flags.how.top_k, flags.how.top_p, flags.how.repeat_last_n) == (0.0, 0, 0.95, -1)
    assert flags.unknown == ("llama.cpp knows no dry",)
    assert read_settings("llamacpp:temp=0.5,mirostat=2").unknown == ("llama.cpp has mirostat 2, which is not compared",)
    assert read_settings("temperature=0.5,min_tokens=3,top_k=-1,stop_token_ids=[5]").program == "vllm"
    assert read_settings("VLLM").how == PROGRAMS["vllm"].defaults


@pytest.mark.parametrize(("word", "message"), [
    ("temperature", "is neither a program nor settings"), ("vllm:tempature=1", "vllm has no setting 'tempature'"),
    ("top_p=0", "top_p 0.0 is not above 0"), ("temperature=warm", "temperature 'warm' is not a number"),
    ("top_k=2.5", "top_k '2.5' is not a whole number"), ("top_k=NaN", "top_k 'nan' is not a whole number"),
    ("temperature=Infinity", "temperature 'inf' is not a number"),
    ("eos_token_id=x", "eos_token_id x is not a token id"),
    ("none.json", "cannot read none.json"),
    ("--temp '0.5", "No closing quotation"), ("", "is neither a program nor settings"),
])  # fmt: skip
def test_other_settings_are_refused(word: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(word)
    assert message in str(caught.value)


def partings(model: tinytf.Model, first: Settings, second: Settings, **settings: Any) -> SamplingDifference:
    return diff_sampling(first, second, model, TEXT, **{"max_tokens": 20, **settings})


@pytest.mark.parametrize(("change", "way"), [
    ({"temperature": 0.5}, DISTANCE), ({"top_k": 3}, SET), ({"top_p": 0.5}, SET), ({"min_p": 0.2}, SET),
    ({"typical_p": 0.4}, SET), ({"repetition_penalty": 3.0}, DISTANCE), ({"presence_penalty": 5.0}, DISTANCE),
    ({"no_repeat_ngram_size": 2}, SET), ({"end_ids": (13,), "stop_token_ids": ()}, END),
])  # fmt: skip
def test_the_one_setting_that_differs_is_named_and_first_where_it_shows(
    model: tinytf.Model, change: dict[str, Any], way: str
) -> None:
    """Recomputed from the model's logits, without a cache: no token before differs in that way, and this one does."""
    base = Settings("transformers", Choosing(order=PROGRAMS["transformers"].defaults.order, end_ids=()))
    other = replace(base, how=replace(base.how, **change))
    if way == END:
        text = partings(model, base, base)
        other = replace(base, how=replace(base.how, end_ids=(text.steps[6].id,)))
        assert (text.settings, text.partings) == ((), ())
    found = partings(model, base, other)
    name = next(iter(change))
    parting = next(one for one in found.partings if one.way == way)
    assert ([one.name for one in found.settings if one.name != "order"], parting.causes) == ([name], ((name,),))
    prompt, ids = model.prompt(TEXT).ids, [one.id for one in found.steps]
    shows = []
    with torch.no_grad():
        for number, token in enumerate(found.steps):
            place = Place([*prompt, *ids[:number]], len(prompt))
            logits = model.transformer(torch.tensor([place.ids]))[0, -1]
            p, q = (processed(logits, side.how, place).double().softmax(-1) for side in (base, other))
            distance = float((p - q).abs().sum() / 2)
            assert token.distance == pytest.approx(distance, abs=1e-4)
            assert (token.first, token.second) == (int(p.argmax()), int(q.argmax()))
            assert token.counts == (int((p > 0).sum()), int((q > 0).sum()))
            is_end = (token.id in (base.how.end_ids or ())) != (token.id in (other.how.end_ids or ()))
            shows.append({DISTANCE: distance > 0.01, SET: not torch.equal(p > 0, q > 0), END: is_end}[way])
    assert shows.index(True) == parting.number - 1


def test_the_causes_are_the_smallest_sets_that_remove_the_difference(model: tinytf.Model) -> None:
    first, second = read_settings("do_sample=true,top_k=5,temperature=0.7"), read_settings("llama.cpp")
    found = partings(model, first, second)
    prompt, ids = model.prompt(TEXT).ids, [one.id for one in found.steps]
    for parting in found.partings:
        place = Place([*prompt, *ids[: parting.number - 1]], len(prompt))
        with torch.no_grad():
            logits = model.transformer(torch.tensor([place.ids]))[0, -1]
        goal = processed(logits, second.how, place)

        def removes(names: tuple[str, ...], logits: Any = logits, place: Any = place, goal: Any = goal,
                    way: str = parting.way) -> bool:  # fmt: skip
            how = replace(first.how, **{name: getattr(second.how, name) for name in names})
            row = processed(logits, how, place)
            same = {
                SET: torch.equal(row.isfinite(), goal.isfinite()),
                CHOICE: int(row.argmax()) == int(goal.argmax()),
                DISTANCE: float((row.double().softmax(-1) - goal.double().softmax(-1)).abs().sum() / 2) <= 0.01,
            }
            return same[way]

        names = [one.name for one in found.settings]
        size = next(n for n in range(1, 20) if any(map(removes, combinations(names, n))))
        assert parting.causes == tuple(chosen for chosen in combinations(names, size) if removes(chosen))
    assert {parting.way for parting in found.partings} >= {SET, DISTANCE}


def test_equal_values_in_another_order_are_another_distribution(model: tinytf.Model) -> None:
    found = partings(
        model, read_settings("vllm:temperature=0.8,top_k=40,top_p=0.95,min_p=0.05"), read_settings("llama.cpp")
    )
    assert [one.name for one in found.settings] == ["order"]
    assert (
        "order (vllm: temperature, min_p, top_k, top_p; llama.cpp: top_k, top_p, min_p, temperature)" in found.sentence
    )


def test_what_a_program_does_by_itself_differs_only_where_it_can_matter() -> None:
    plain, llama = read_settings("vllm:temperature=0"), read_settings("--temp 0")
    assert differing(plain, llama) == ["top_k", "top_p", "min_p", "order"]
    penalty = read_settings("vllm:temperature=0,presence_penalty=1"), read_settings("--temp 0 --presence-penalty 1")
    assert differing(*penalty) == ["top_k", "top_p", "min_p", "repeat_last_n", "counted_tokens", "order"]
    assert {one.name for one in fields(Choosing)} >= set(differing(*penalty))


def test_sentences_of_settings_say_what_differs_and_what_does_not(model: tinytf.Model) -> None:
    greedy = read_settings("transformers")
    assert diff_sampling(greedy, greedy).sentence == "No setting differs."
    beams = read_settings("num_beams=2")
    assert diff_sampling(greedy, beams).sentence == "No setting differs that is compared."
    one = diff_sampling(greedy, read_settings("top_k=7"))
    assert one.sentence == "One setting differs: top_k (A: 50 by default; B: 7)."
    shown = diff_sampling(greedy, read_settings("top_k=7"), model, TEXT, max_tokens=6)
    assert shown.sentence == "One setting differs, and it does not show in 6 new tokens."
    drawn = diff_sampling(greedy, read_settings("vllm:temperature=1"), model, TEXT, max_tokens=2)
    assert drawn.sentence.startswith(
        "2 settings differ. At new token 1 transformers takes the most probable token and vllm draws from "
        "2,048 tokens: temperature (transformers: 0, as do_sample is false; vllm: 1) and top_k ("
    )
    warm = diff_sampling(read_settings("vllm:temperature=0.9"), read_settings("vllm"), model, TEXT, max_tokens=1)
    assert f" the probabilities differ by {percent(warm.steps[0].distance)}: temperature (A: 0.9; " in warm.sentence
    penalised = diff_sampling(greedy, read_settings("vllm:temperature=0,repetition_penalty=5"), model, TEXT)
    choice = next(one for one in penalised.partings if one.way == CHOICE)
    assert choice.causes == (("repetition_penalty",),)
    at = penalised.steps[choice.number - 1]
    shown_ids = [model.shown(token) for token in (at.first, at.second)]
    said = (
        f"At new token {choice.number} {shown_ids[0]} is the most probable for transformers and {shown_ids[1]} for vllm"
    )
    assert f"{said}: repetition_penalty (transformers: 1 by default; vllm: 5)." in penalised.sentence


def test_an_end_token_ends_the_text_of_one_and_not_of_the_other(model: tinytf.Model) -> None:
    greedy = read_settings("do_sample=false,eos_token_id=[]")
    first = diff_sampling(greedy, greedy, model, TEXT, max_tokens=5)
    end = first.steps[2].id
    number = next(one.number for one in first.steps if one.id == end)
    ends = read_settings(f"vllm:temperature=0,eos_token_id={end}")
    found = diff_sampling(ends, greedy, model, TEXT, max_tokens=5)
    assert [(one.way, one.number, one.causes) for one in found.partings] == [(END, number, (("end_ids",),))]
    assert len(found.steps) == number
    assert (
        f"At new token {number} vllm ends with {model.shown(end)} and transformers goes on: end_ids (" in found.sentence
    )
    on = read_settings(f"vllm:temperature=0,eos_token_id={end},ignore_eos=true")
    assert diff_sampling(on, greedy, model, TEXT, max_tokens=5).partings == ()
    never = processed(
        torch.zeros(5), replace(PROGRAMS["llama.cpp"].defaults, ignore_eos="never draws it"), Place([1], 1, [3])
    )
    assert math.isinf(float(never[3]))
    assert never.isfinite().sum() == 4


def test_a_model_and_a_text_belong_together(model: tinytf.Model) -> None:
    greedy = read_settings("transformers")
    with pytest.raises(UsageError, match="belong together"):
        diff_sampling(greedy, greedy, model)
