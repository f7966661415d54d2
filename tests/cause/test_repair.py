"""Self-repair: the terms of an ablated logit, by hand on transformers in float64, and their sum in every kind."""

import json
from collections.abc import Sequence

import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import tinytf
from tinytf.cause.repair import Repair
from tinytf.errors import UsageError
from tinytf.trace.record import record
from tinytf_cli.main import run

PREDICTING = [kind for kind in KINDS if config_of(kind).head.kind in ("lm", "mlm") and config_of(kind).n_layers > 1]
LENGTH, MASK = 9, 5
TEXT = "The cat sat on the"


def ablated(kind: str, at: Sequence[str], **settings: object) -> Repair:
    model = lively(config_of(kind))
    ids = [token if token != 30 else 0 for token in some_ids(model.config, 1, LENGTH, 3)[0].tolist()]
    if not model.config.causal:
        ids[MASK] = 30
    mask = None if model.config.causal else 30
    return asked(model, mask).repair(record(model, encoding_of(ids), mask), at, target=7, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", PREDICTING)
def test_the_terms_sum_to_the_change_of_the_logit_in_every_kind_of_model(kind: str) -> None:
    try:
        report = ablated(kind, ["L0"])
    except UsageError as error:  # a kind of model whose logit has no parts
        pytest.skip(error.message)
    assert report.holds, report.check
    assert sum(report.by_kind.values()) == pytest.approx(report.change, abs=1e-3)


def _terms(model: GPT2LMHeadModel, ids: Tensor, layer: int, head: int | None) -> dict[str, Tensor]:
    """The vectors that the parts add at the last token, by hooks on transformers' modules, with a head set to zero."""
    vectors: dict[str, Tensor] = {}
    heads, size = model.config.n_head, model.config.n_embd // model.config.n_head
    handles = []

    def mixed(number: int) -> None:
        attention = model.transformer.h[number].attn

        def before(module: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (z,) = args  # (1, T, H·D)
            z = z.clone()
            if number == layer and head is not None:
                z[..., head * size : (head + 1) * size] = 0
            for each in range(heads):
                part = slice(each * size, (each + 1) * size)
                vectors[f"L{number}H{each}"] = z[0, -1, part] @ attention.c_proj.weight[part]
            return (z,)

        handles.append(attention.c_proj.register_forward_pre_hook(before))
        mlp = model.transformer.h[number].mlp
        handles.append(
            mlp.register_forward_hook(
                lambda module, args, out: vectors.__setitem__(f"L{number}.ffn", out[0, -1] - module.c_proj.bias)
            )
        )

    for number in range(model.config.n_layer):
        mixed(number)
    handles.append(
        model.transformer.ln_f.register_forward_pre_hook(
            lambda module, args: vectors.__setitem__("stream", args[0][0, -1])
        )
    )
    vectors["logits"] = model(ids).logits[0, -1]
    for handle in handles:
        handle.remove()
    return vectors


@torch.no_grad()
def test_every_term_is_that_of_transformers_by_hand(tmp_path) -> None:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=2048, n_positions=32, n_embd=24, n_layer=3, n_head=4, attn_implementation="eager")
    theirs = GPT2LMHeadModel(config).double().eval()
    for parameter in theirs.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "gpt2")
    tinytf.load("tiny").tokenizer.library.save(str(tmp_path / "gpt2" / "tokenizer.json"))
    model = tinytf.load(str(tmp_path / "gpt2"), dtype="float64")
    report = model.repair(TEXT, "L0H2", target="mat", versus="dog")

    ids = torch.tensor([model.encode(TEXT).ids])
    plain, cut = _terms(theirs, ids, 0, None), _terms(theirs, ids, 0, 2)
    token, other = model.find_token("mat"), model.find_token("dog")
    direction = theirs.lm_head.weight[token] - theirs.lm_head.weight[other]
    stream = plain["stream"]
    scale = theirs.transformer.ln_f.weight / (stream.var(correction=0) + config.layer_norm_epsilon).sqrt()

    def term(vector: Tensor) -> float:
        return float(((vector - vector.mean()) * scale) @ direction)

    lead = [float(run["logits"][token] - run["logits"][other]) for run in (plain, cut)]
    assert (report.before, report.after) == pytest.approx(lead, abs=1e-9)
    for part in report.parts:
        if part.kind in ("head", "feed-forward"):
            expected = term(plain[part.name]), term(cut[part.name])
            assert (part.before, part.after) == pytest.approx(expected, abs=1e-9), part.name
    assert [part.name for part in report.parts if part.ablated] == ["L0H2"]
    assert report.direct == pytest.approx(-term(plain["L0H2"]), abs=1e-9)
    # All parts with the scale of before, that is the whole stream, against the logits: the norms.
    assert report.norms == pytest.approx(lead[1] - lead[0] - (term(cut["stream"]) - term(stream)), abs=1e-9)


def test_after_the_last_feed_forward_only_the_norm_puts_anything_back() -> None:
    report = ablated("gpt2", ["L1.ffn"])
    assert all(part.change == pytest.approx(0, abs=1e-9) for part in report.parts if not part.ablated)
    assert report.repair == pytest.approx(report.norms)
    assert [part.name for part in report.parts if part.ablated] == ["L1.ffn", "L1.ffn bias"]
    assert "later parts" not in report.sentence
    assert "; the norms " in report.sentence


def test_the_sentence_says_what_became_of_the_direct_effect() -> None:
    model, seen = tinytf.load("tiny"), set()
    for at in ("L1H2", "L1.attn", "L3H2", "L0H3", "L2.ffn"):
        report = model.repair(TEXT, at)
        share = report.share
        assert share is not None
        words = "outweigh that" if share > 1 else "of that back" if share > 0 else "add to that"
        seen.add(words)
        assert words in report.sentence
        assert (
            f"{'lowers' if report.direct < 0 else 'raises'} the logit of ·mat by {abs(report.direct):.3g}"
            in report.sentence
        )
        helper = next((part for part in report.strongest() if part.change * report.repair > 0), None)
        assert helper is None or f", {helper.name} most" in report.sentence
    assert seen == {"outweigh that", "of that back", "add to that"}


def test_an_expert_that_no_token_takes_changes_nothing() -> None:
    model = tinytf.load("preset:mixtral-tiny")
    trace = model.trace(TEXT)
    taken = trace.step(trace.steps.choice, 1)  # (T, E)
    unused = (~taken.any(dim=0)).nonzero()[0].item()
    report = model.repair(trace, f"L1E{unused}")
    assert (report.direct, report.repair, report.share) == (0, 0, None)
    assert report.sentence.startswith(f"Ablating L1E{unused} does not change the logit of ")
    elsewhere = next(n for n in range(8) if taken[:-1, n].any() and not taken[-1, n])
    report = model.repair(trace, f"L1E{elsewhere}")
    assert report.direct == 0 != report.repair
    assert " directly; later parts and norms do, " in report.sentence


def test_the_ablation_itself_is_that_of_ablate() -> None:
    model = tinytf.load("tiny")
    texts = model.reference(["The dog ran to the door.", "A cat saw the old man and the hat."])
    settings = {"how": "mean", "target": "mat", "reference": texts}
    report, ablation = (
        model.repair(TEXT, ["L1H2", "L2.ffn"], **settings),
        model.ablate(TEXT, ["L1H2", "L2.ffn"], **settings),
    )
    assert report.source == ablation.source
    with model.ablated(["L1H2", "L2.ffn"], how="mean", reference=texts):
        logits = model.trace(TEXT).logits_at(4)
    assert report.after == pytest.approx(float(logits[report.target]), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--repair", "--sweep", "heads"), "--repair goes with --at"),
        (("--repair", "--at", "L2.in"), "L2.in is no part that adds to the logit"),
        (("--repair", "--at", "L0H1.v"), "L0H1.v is no part that adds to the logit"),
        (("--repair", "--at", "L1.ffn[-1]"), "L1.ffn[4] is no part that adds to the logit"),
        (("--at", "L1H2", "--repair", "--metric", "kl"), "--repair splits a logit, and takes no --metric"),
        (
            ("--at", "L1H2", "--repair", "--target", "mat", "--versus", "mat"),
            "a token compared with itself has no lead",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_line(words, message, capsys) -> None:
    assert run(["ablate", TEXT, *words]) == 2
    assert capsys.readouterr().err.startswith(f"tinytf: error: {message}")


def test_the_command_shows_the_terms_and_its_json_has_all_parts(capsys) -> None:
    assert run(["ablate", TEXT, "--at", "L1H2", "--repair", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    ablated = sum(part["change"] for part in data["parts"] if part["ablated"])
    assert data["by_kind"]["direct effect"] == pytest.approx(ablated)
    assert sum(data["by_kind"].values()) == pytest.approx(data["change"], abs=1e-4)
    assert run(["ablate", TEXT, "--at", "L1H2", "--repair", "--width", "80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    assert lines[-1].startswith("checked: the terms sum to the change of the logit")
