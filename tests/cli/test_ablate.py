"""tinytf ablate: what it draws, its data, and what it refuses."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from driving import CORPUS, SENTENCE, Tinytf, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.cause.interventions import Effect, HookPoint
from tinytf.errors import UsageError
from tinytf.loading import load
from tinytf.report import Verified

MASKED = "The cat [MASK] on the mat"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two texts that are longer than the sentence."""
    path = tmp_path / "texts.txt"
    path.write_text(f"{CORPUS[0][:90]}\n\n{CORPUS[0][19:120]}\n", "utf-8")
    return path


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("ablate", SENTENCE, "-m", decoder, "--at", "L0H1", "--at", "L1.ffn")
    data = json.loads(tinytf(*arguments, "--json").out)
    found = load(str(decoder)).ablate(SENTENCE, ["L0H1", "L1.ffn"])
    assert data["kind"] == "ablate"
    assert data["at"] == ["L0H1", "L1.ffn"]
    assert (data["kl"], data["change"]) == (found.effect.kl, found.effect.change)
    assert [one["after"] for one in data["choices"]] == [one.after for one in found.choices]
    assert (data["loss_before"], data["loss_after"]) == (found.loss_before, found.loss_after)
    assert data["check"]["holds"] is True


def test_the_map_has_a_number_for_every_head_and_lists_the_strongest(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("ablate", SENTENCE, "-m", decoder, "--sweep", "heads", "--top", "3")
    data = json.loads(tinytf(*arguments, "--json").out)
    changes = {one["at"]: one["change"] for one in data["effects"]}
    assert list(changes) == ["L0H0", "L0H1", "L1H0", "L1H1"]
    ran = tinytf(*arguments)
    assert ran.status == 0, ran.err
    rows = [line for line in ran.lines if re.match(r"  L[01] +-?\d", line)]
    shown = [float(number) for number in re.findall(r"-?\d+\.\d+", rows[1])]
    assert shown == pytest.approx([changes["L1H0"], changes["L1H1"]], abs=0.01)
    listed = [line.split()[0] for line in ran.lines if re.match(r"  L\dH\d ", line)]
    assert listed == sorted(changes, key=lambda name: -abs(changes[name]))[:3]
    assert ran.lines[-1].startswith(f"checked: {listed[0]}, run by itself, gives the same logits, off by ")


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path) -> None:
    for options, kind, key in ((("--sweep", "ffn"), "effect", "effects"), (("--at", "L1"), "choice", "choices")):
        arguments = ("ablate", SENTENCE, "-m", decoder, *options)
        data = json.loads(tinytf(*arguments, "--json").out)
        events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
        assert [events[0]["type"], events[-1]["type"]] == [data["kind"], "check"]
        assert [event for event in events if event["type"] == kind] == [{"type": kind, **one} for one in data[key]]


def test_the_tensors_of_a_sweep_are_its_maps(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    assert tinytf("ablate", SENTENCE, "-m", decoder, "--sweep", "heads", "-o", path).status == 0
    tensors = load_file(path)
    assert tensors["kl"].shape == tensors["change"].shape == (2, 2)


def test_a_target_is_followed_by_its_text_or_number(tinytf: Tinytf, decoder: Path) -> None:
    number = load(str(decoder)).find_token("the")
    found = [
        json.loads(tinytf("ablate", SENTENCE, "-m", decoder, "--at", "L0", "--target", word, "--json").out)
        for word in ("the", f"#{number}")
    ]
    assert [one["metric"]["answer"][0]["id"] for one in found] == [number, number]
    assert found[0]["choices"][0]["id"] == number


@pytest.mark.parametrize(
    "arguments",
    [
        ("ablate", "The cat", "--at", "L0H1", "--target", "#2876"),
        ("attribute", "The cat", "--token", "#2876", "--versus", "#3"),
        ("lens", "The cat", "--track", "#2876"),
        ("patch", "The cat", "The dog", "--answer", "#2876", "--versus", "#3"),
    ],
)
def test_a_token_that_only_the_model_has_goes_by_its_number(tinytf: Tinytf, arguments: tuple[str, ...]) -> None:
    ran = tinytf(*arguments, "-m", "preset:llama-tiny")  # of 32,000 tokens, its tokenizer of 2,048
    assert ran.status == 0, ran.err
    assert "#2876" in ran.out
    beyond = tinytf(*(word.replace("#2876", "#32000") for word in arguments), "-m", "preset:llama-tiny")
    assert is_a_clean_error(beyond)
    assert "there is no token 32,000: the vocabulary has 32,000, 0 to 31,999" in beyond.err


def test_a_small_probability_is_shown_by_its_size(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("ablate", SENTENCE, "-m", "tiny", "--at", "L0", "--target", "cat")
    choice = json.loads(tinytf(*arguments, "--json").out)["choices"][0]
    assert 0 < choice["before"] < 1e-4
    assert re.search(rf"·cat +{choice['before']:.1e} ", tinytf(*arguments).out)


def test_an_encoder_is_ablated_at_its_mask(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("ablate", MASKED, "-m", encoder, "--sweep", "layers")
    assert ran.status == 0, ran.err
    position = next(i for i, token in enumerate(load(str(encoder)).encode(MASKED).tokens) if token.shown == "[MASK]")
    assert f"at [MASK] {position}: ln p(" in ran.out
    assert "the first of 2" in tinytf("ablate", "The [MASK] sat [MASK]", "-m", encoder, "--at", "L0").out
    assert is_a_clean_error(tinytf("ablate", SENTENCE, "-m", encoder, "--at", "L0"))


def test_means_and_other_texts_come_from_the_reference(tinytf: Tinytf, decoder: Path, texts: Path) -> None:
    for how, said in (("mean", "set to the mean over 2 texts"), ("resample", "replaced by values from text ")):
        arguments = ("ablate", SENTENCE, "-m", decoder, "--at", "L1", "--how", how, "--reference", texts)
        ran = tinytf(*arguments, "--width", "200")
        assert ran.status == 0, ran.err
        assert said in ran.out
    one, other = (
        tinytf("ablate", SENTENCE, "-m", decoder, "--sweep", "ffn", "--how", "resample", "--reference", texts, "--json",
               "--seed", seed).out
        for seed in ("1", "1")
    )  # fmt: skip
    assert one == other


def test_the_built_in_models_have_texts_of_their_own() -> None:
    for name in ("tiny", "tiny-encoder"):
        texts = load(name).reference()
        assert texts.n_tokens > 3000
        assert len(texts.texts) > 20


def test_what_does_not_add_up_is_status_1(tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        import_module("tinytf.cause.interventions.ablate"), "same", lambda what, *_, **__: Verified(what, 0.5, 1e-5)
    )
    ran = tinytf("ablate", SENTENCE, "-m", decoder, "--at", "L0H1", "--width", "200")
    assert ran.status == 1
    assert ran.lines[-1].startswith("check failed: it should be that their own values put in")
    assert ran.lines[-1].endswith("and it is off by 5.0e-01 (allowed 1.0e-05)")


def test_several_texts_are_ablated_in_turn(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("ablate", "The cat\nThe dog", "--lines", "-m", decoder, "--at", "L0", "--json").out)
    assert [one["text"] for one in data["ablations"]] == ["The cat", "The dog"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_screen_and_colour_changes_no_word(tinytf: Tinytf, decoder: Path, width: int) -> None:
    for options in (("--sweep", "heads"), ("--sweep", "layers"), ("--at", "L0H1", "--at", "L1")):
        arguments = ("ablate", SENTENCE, "-m", decoder, "--width", str(width), *options)
        for more in ((), ("--ascii", "--color", "never")):
            ran = tinytf(*arguments, *more, screen=True)
            assert ran.status == 0, ran.err
            assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width
        if more:
            assert ran.out.isascii()


def test_in_sentences_nothing_is_drawn(tinytf: Tinytf, decoder: Path) -> None:
    for options in (("--sweep", "heads"), ("--at", "L0H1")):
        assert not re.search("[░▒▓█▏▎▍▌]", tinytf("ablate", SENTENCE, "-m", decoder, *options, "--plain").out)


def test_a_run_has_the_text_that_it_was_trained_on(tinytf: Tinytf, recipe: Path, tmp_path: Path) -> None:
    corpus, run = tmp_path / "corpus.txt", tmp_path / "run"
    corpus.write_text("\n\n".join(CORPUS[0][start : start + 60] for start in range(0, 500, 60)), "utf-8")
    assert tinytf("train", corpus, "--recipe", recipe, "--out", run).status == 0
    ran = tinytf("ablate", "The cat", "-m", run, "--at", "L0", "--how", "mean", "--json")
    assert ran.status == 0, ran.err
    assert "corpus.txt" in json.loads(ran.out)["source"]
    corpus.unlink()
    assert is_a_clean_error(tinytf("ablate", "The cat", "-m", run, "--at", "L0", "--how", "mean"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((SENTENCE,), "nothing is named to ablate"),
        ((SENTENCE, "--at", "L0", "--sweep", "heads"), "two things at once"),
        ((SENTENCE, "--at", "L9H0"), "there is no layer 9"),
        ((SENTENCE, "--at", "embed.out"), "cannot be replaced"),
        ((SENTENCE, "--at", "L0", "--how", "mean"), "has no texts of its own"),
        ((SENTENCE, "--at", "L0", "--reference", "x.txt"), "zeros need no texts"),
        ((SENTENCE, "--at", "L0", "--how", "mean", "--reference", "/nowhere/x.txt"), "cannot read"),
        (
            (SENTENCE, "--at", "L0", "--metric", "logit", "--target", "catastrophically"),
            "--target 'catastrophically' is",
        ),
        (("", "--at", "L0"), "the text is empty"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("ablate", *arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


@pytest.mark.parametrize("data", [b"", b" \n\n ", b"\xff\xfe", b"a\0b"])
def test_a_reference_without_text_is_an_error(tinytf: Tinytf, decoder: Path, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "reference.txt"
    path.write_bytes(data)
    ran = tinytf("ablate", SENTENCE, "-m", decoder, "--at", "L0", "--how", "mean", "--reference", path)
    assert is_a_clean_error(ran)


def test_an_effect_and_a_site_are_read_from_python(decoder: Path) -> None:
    model = load(str(decoder))
    found = model.ablate(model.trace(SENTENCE), "L1H0", how="mean", reference=model.reference(__file__), target="the")
    assert found.sites == (HookPoint("head_out", 1, 0),)
    assert isinstance(found.effect, Effect)
    assert len(model.ablate_sweep(SENTENCE, "layers").effects) == 2


def test_what_an_ablated_model_writes_is_what_a_model_with_cut_weights_writes(decoder: Path) -> None:
    model, cut = load(str(decoder), device="cpu"), load(str(decoder), device="cpu")
    plain = model.generate("The cat", max_tokens=12)
    with torch.no_grad():
        cut.transformer.blocks[0].ffn.down.weight.zero_()  # type: ignore[union-attr, operator]
        cut.transformer.blocks[0].ffn.down.bias.zero_()  # type: ignore[union-attr, operator]
    with model.ablated("L0.ffn"):
        found = model.generate("The cat", max_tokens=12)
    assert found == cut.generate("The cat", max_tokens=12) != plain
    assert model.generate("The cat", max_tokens=12) == plain


def test_a_model_can_be_kept_without_what_it_gives_in_the_mean(decoder: Path, texts: Path) -> None:
    model = load(str(decoder), device="cpu")
    with model.ablated(["L0H1", "L1.ffn"], how="mean", reference=texts):
        logits = model.trace(SENTENCE).recorded_logits[0]
    found = model.ablate(SENTENCE, ["L0H1", "L1.ffn"], how="mean", reference=texts)
    assert float(logits.double().log_softmax(-1)[found.target]) == pytest.approx(found.effect.after, abs=1e-6)
    with pytest.raises(UsageError, match="no text is given"), model.ablated("L0", how="resample", reference=texts):
        pass
