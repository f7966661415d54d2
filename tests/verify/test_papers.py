"""Papers: every measure against another computation, claims that hold and that fail, and files that are refused."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from year_tokens import two_digits

import tinytf
from tinytf.cause.interventions import Intervention, hook_points, intervening
from tinytf.errors import UsageError
from tinytf.look.weights.factors import HeadKey
from tinytf.pairs.scored import each_lead, score_pairs
from tinytf.report import Verified
from tinytf.steps.table import table_of
from tinytf.verify.measures import MEASURES, Bench, Reaction, _mapped
from tinytf.verify.paper import FAILED, HELD, NOT_MEASURED, PaperCheck, find_paper, recompute, shipped_papers
from tinytf_cli.main import run

CLAIM = """
title = "A paper of mine"
source = "Me 2026"
model = "tiny"
[pairs]
task = "agreement"
n = 20
[[claim]]
words = "It is right sometimes"
measure = "pair accuracy"
least = 0.1
"""


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def like_gpt2(tmp_path_factory: pytest.TempPathFactory) -> tinytf.Model:
    """A random GPT-2 of 12 layers × 12 heads, as the papers' own, and narrow; with the words of the built-in model."""
    torch.manual_seed(4)
    config = GPT2Config(vocab_size=2048, n_positions=128, n_embd=48, n_layer=12, n_head=12)
    theirs = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    theirs.save_pretrained(folder)
    tinytf.load("tiny").tokenizer.library.save(str(folder / "tokenizer.json"))
    return tinytf.load(str(folder))


def bench(model: tinytf.Model, task: str, n: int = 12) -> Bench:
    return Bench(model, lambda model: model.pairs(task, n), ())


def measured(name: str, bench: Bench, **settings: object) -> float:
    return MEASURES[name].compute(bench, settings).value


def test_each_shipped_paper_has_a_source_and_a_place_for_every_claim() -> None:
    assert shipped_papers() == ("copying", "greater-than", "induction", "ioi", "rxnmapper")
    for name in shipped_papers():
        paper = find_paper(f"paper:{name}")
        assert re.search(r"[A-Z].* 20\d\d$", paper.source)
        assert paper.model == "tiny" or paper.needs
        for claim in paper.claims:
            assert claim.section
            assert claim.measure or claim.why


@pytest.mark.parametrize("name", ["induction", "copying"])
def test_what_is_said_of_induction_heads_holds_on_the_built_in_model(name: str, model: tinytf.Model) -> None:
    check = recompute(find_paper(f"paper:{name}"), model)
    assert check.count(FAILED) == 0
    assert check.count(HELD) >= 2
    held = check.count(HELD)
    assert (
        f"Of {len(check.claims)} claims of {check.paper.source}, {held} hold and 1 is not measured here"
        in check.sentence
    )


@pytest.mark.exhaustive
def test_what_is_said_of_gpt2_fails_on_a_random_model_of_its_shape(like_gpt2: tinytf.Model) -> None:
    paper = find_paper("paper:ioi")
    check = recompute(replace(paper, pairs={**paper.pairs, "n": 40}), like_gpt2)
    held = [claim.claim.measure for claim in check.claims if claim.state != FAILED]
    assert held in ([], ["ablation effect"])  # heads that do nothing are not missed
    assert not check.holds
    assert "fail" in check.sentence
    assert recompute(find_paper("paper:induction"), like_gpt2).count(HELD) == 0


def test_a_head_that_the_model_lacks_is_not_measured(model: tinytf.Model) -> None:
    check = recompute(find_paper("paper:ioi"), model)
    lacking = [claim for claim in check.claims if claim.state == NOT_MEASURED]
    assert len(lacking) == 9
    assert all(re.match(r"there is no (layer|head) \d+", claim.why) for claim in lacking)


def test_a_measure_without_a_number_is_not_measured(model: tinytf.Model) -> None:
    """Heads of a kind that a model lacks, and a score of a layer without attention weights, fail no claim."""
    with pytest.raises(UsageError, match="has no head of the kind copying"):
        measured("attention to the answer", bench(model, "ioi", 2), kind="copying")
    hybrid = replace(model, name="hybrid", transformer=tinytf.load("preset:lfm2-tiny").transformer)
    claim = replace(find_paper("paper:ioi").claims[-1], settings={"score": "previous", "head": "L0H0"})
    check = recompute(replace(find_paper("paper:ioi"), claims=(claim,), pairs=None), hybrid)
    assert [(checked.state, checked.why) for checked in check.claims] == [
        (NOT_MEASURED, "the measure is not a number on this model")
    ]


def test_heads_set_to_zero_are_those_of_a_model_without_them(like_gpt2: tinytf.Model) -> None:
    of = bench(like_gpt2, "ioi")
    heads, names = [HeadKey(0, 3), HeadKey(5, 5), HeadKey(11, 0)], ["L0H3", "L5H5", "L11H0"]
    cut = score_pairs(like_gpt2.without(names), of.pairs).clean
    assert of.leads_without(heads, "zero") == pytest.approx(cut, abs=1e-5)
    lost = 1 - np.mean(cut) / np.mean(of.scores.clean)
    assert measured("ablation effect", of, heads=names, how="zero") == pytest.approx(lost, abs=1e-4)
    every = [f"L{layer}H{head}" for layer in range(12) for head in range(12)]
    assert measured("faithfulness", of, heads=every) == pytest.approx(1)
    others = [name for name in every if name not in names]
    lonely = np.mean(score_pairs(like_gpt2.without(others), of.pairs).clean) / np.mean(of.scores.clean)
    assert measured("faithfulness", of, heads=names, how="zero") == pytest.approx(lonely, abs=1e-4)


def test_a_mean_is_by_position_over_texts_with_other_names(like_gpt2: tinytf.Model) -> None:
    of = bench(like_gpt2, "ioi", 30)
    head, template = "L3H7", of.pairs[0].pair.labels["template"]
    group = [
        pair
        for pair in of.pairs
        if pair.pair.labels["template"] == template and len(pair.clean.ids) == len(of.pairs[0].clean.ids)
    ]
    texts = [of._renamed(pair) for pair in group]
    for pair, text in zip(group, texts, strict=True):
        changed = [(a, b) for a, b in zip(pair.clean.ids, text.ids, strict=True) if a != b]
        assert {a for a, _ in changed} == {pair.answer, pair.versus}
        assert len({b for _, b in changed}) == len(changed) == 3  # three different names, none of the pair's
        assert not {b for _, b in changed} & {pair.answer, pair.versus}
    mean = torch.stack([like_gpt2.trace_of(text).step("head_out", 3, (7,))[0] for text in texts]).mean(dim=0)
    leads_by_name = {
        pair.pair.number: lead for pair, lead in zip(of.pairs, of.leads_without([HeadKey(3, 7)], "mean"), strict=True)
    }
    (point,) = hook_points(head, table_of(like_gpt2.config))
    with intervening(like_gpt2.transformer, [Intervention(point, mean)]):
        (expected,) = each_lead(like_gpt2, [group[0].clean], group[:1])
    assert leads_by_name[group[0].pair.number] == pytest.approx(expected, abs=1e-5)


def test_copying_is_the_score_of_weights(model: tinytf.Model) -> None:
    scores = {row.head: row.copying for row in model.weights().heads}
    found = measured("copying", Bench(model, None, ()), heads=["L0H0", "L1H3"])
    assert found == pytest.approx((scores["L0H0"] + scores["L1H3"]) / 2)


def test_the_direct_effect_and_the_attention_are_those_of_attribute_and_the_trace(model: tinytf.Model) -> None:
    of = bench(model, "ioi", 6)
    sums = np.zeros((4, 4))
    shares = []
    for pair in of.pairs:
        sums += model.attribute(pair.pair.clean, token=pair.pair.answer, versus=pair.pair.versus).heads().numpy() / 6
        weights = model.trace(pair.pair.clean)["L2H1.weights"][-1]
        shares.append(sum(float(w) for w, token in zip(weights, pair.clean.ids, strict=True) if token == pair.answer))
    order = [tuple(divmod(int(index), 4)) for index in np.argsort(-sums, axis=None)]
    for rank, (layer, head) in enumerate(order, 1):
        assert measured("direct effect rank", of, head=f"L{layer}H{head}") == rank
    assert measured("attention to the answer", of, heads=["L2H1"]) == pytest.approx(np.mean(shares), abs=1e-6)


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_a_paper_of_ones_own_with_pairs_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"clean": "The cats", "corrupt": "The cat", "answer": "were", "versus": "was"}
    write(tmp_path / "own.jsonl", json.dumps(row) + "\n")
    text = CLAIM.replace('task = "agreement"\nn = 20', 'file = "own.jsonl"')
    path = write(tmp_path / "own.toml", text)
    assert run(["verify", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["held"], data["claims"][0]["measured"]["value"]) == ("paper", 1, 1.0)
    assert run(["verify", write(tmp_path / "own.toml", text.replace("least = 0.1", "most = 0.1"))]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("Of 1 claim of Me 2026, 1 fails on tiny.")
    assert "✗ It is right sometimes\n  1, expected at most 0.1" in shown
    assert run(["verify", path, "--full", "--width", "60"]) == 1
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_the_paper_of_the_docs_holds_and_their_table_has_every_measure(model: tinytf.Model, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text("utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    check = recompute(find_paper(write(tmp_path / "note.toml", text)), model)
    assert [claim.state for claim in check.claims] == [HELD, HELD, NOT_MEASURED]
    (table,) = re.findall(r"^\| measure \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    rows = [row.split("|")[1] for row in table.splitlines()[2:] if row]
    assert sorted(name for row in rows for name in re.findall("`(.*?)`", row)) == sorted(MEASURES)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pair accuracy", "__import__('os').system('x')", "field 'measure' of claim 1: there is no measure"),
        ("pair accuracy", "head score", "head score needs 'score'"),
        ("pair accuracy", "ablation effect", "ablation effect takes heads or a kind"),
        ("pair accuracy", 'copying"\nheads = ["L0H0"]\nkind = "induction', "copying takes heads or a kind"),
        ('"pair accuracy"', '"copying"\nheads = []', "field 'heads' of claim 1: must be a list of heads"),
        ("least = 0.1", "least = 0.1\ntolerance = 0.1", "a tolerance is 0 or more, and goes with a value"),
        ("least = 0.1", "value = 0.1\ntolerance = -1", "a tolerance is 0 or more, and goes with a value"),
        ('task = "agreement"', 'file = "a.jsonl"', "field 'file': n and seed are of a task"),
        ("least = 0.1", "leest = 0.1", "field 'leest' of claim 1: there is no such field"),
        ("least = 0.1", "least = nan", "a number of the claim is NaN"),
        ("least = 0.1", "", "a claim that is measured needs a value, a least or a most"),
        ("least = 0.1", 'kind = "induction"', "field 'kind' of claim 1: there is no such field"),
        ('measure = "pair accuracy"', "", "a claim without a measure needs a why"),
        ('words = "It is right sometimes"', "", "a claim needs words"),
        ("n = 20", "n = 100000", "there are 1 to 2,000 pairs"),
        ("n = 20", 'file = "a.jsonl"', "the pairs are a task or a file"),
        ("[[claim]]", "[claim]", "is a table, but must be a list"),
        ("pair accuracy", 'heads of a kind"\nkind = "inductive', "field 'kind' of claim 1: there is no kind of head"),
    ],
)
def test_a_claim_that_cannot_be_read_is_refused_by_its_line(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "own.toml", CLAIM.replace(old, new))
    assert run(["verify", path]) == 2
    error = capsys.readouterr().err.splitlines()[0]
    assert re.match(rf"tinytf: error: {re.escape(path)}, line \d+", error)
    assert message in error


def test_a_table_of_pairs_that_is_refused_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "own.toml", CLAIM.replace('task = "agreement"\nn = 20', 'file = "own.jsonl"'))
    assert run(["verify", path]) == 2
    assert capsys.readouterr().err.startswith(f"tinytf: error: cannot read {tmp_path / 'own.jsonl'}")
    write(tmp_path / "own.jsonl", '\n{"clean": "The cat", "corrupt": "The cats"}\n')
    assert run(["verify", path]) == 2
    assert "line 2 of" in capsys.readouterr().err


def test_later_years_are_weighed_as_hanna_weighs_them(tmp_path: Path) -> None:
    two_digits(tmp_path / "tokenizer.json")
    small = tinytf.load("preset:gpt2-tiny", tokenizer=str(tmp_path / "tokenizer.json"))
    of = bench(small, "greater-than", 8)
    differences = []
    for pair in of.pairs:
        start = int(re.search(r"year \d\d(\d\d) to", pair.pair.clean)[1])
        shares = small.trace(pair.pair.clean).logits_at(len(pair.clean.ids) - 1).double().softmax(-1)
        plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        years = [float(shares[plain.token_to_id(f"{year:02}")]) for year in range(100)]
        differences.append(sum(share if year > start else -share for year, share in enumerate(years)))
    assert measured("probability difference", of) == pytest.approx(np.mean(differences), abs=1e-6)


def test_a_number_without_a_tolerance_is_as_exact_as_it_is_printed(tmp_path: Path) -> None:
    paper = find_paper(write(tmp_path / "own.toml", CLAIM.replace("least = 0.1", "value = 0.650")))
    (claim,) = paper.claims
    assert claim.tolerance == 0.0005
    assert [claim.holds(number) for number in (0.6504, 0.6506, float("nan"))] == [True, False, False]
    assert isinstance(recompute(paper, tinytf.load("tiny")), PaperCheck)
    assert not Verified("", float("nan"), 1.0).holds


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("paper:ioi",), "ioi is about GPT-2 small"),
        (("paper:iio",), "there is no paper 'iio'"),
        (("paper:induction", "cat-sat"), "papers and worked examples are verified in different ways"),
        (("paper:induction", "--edit", "x.toml"), "--edit is for worked examples"),
        (("cat-sat", "-m", "tiny"), "--model is for papers"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], message: str, capsys) -> None:
    assert run(["verify", *words]) == 2
    assert capsys.readouterr().err.startswith(f"tinytf: error: {message}")


def test_an_interrupt_keeps_the_claims_that_were_measured(model: tinytf.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "leads_without", interrupted)
    check = recompute(find_paper("paper:induction"), model)
    assert [claim.state for claim in check.claims] == [HELD] * 4 + [NOT_MEASURED] * 2
    assert check.interrupted
    assert check.claims[4].why == "stopped before"


def test_atoms_go_to_those_of_their_element_with_the_most_weight_both_ways() -> None:
    folder = _rxnmapper()
    if folder is None:
        pytest.skip("TINYTF_REAL_WEIGHTS names no folder with the weights of rxnmapper")
    model = tinytf.load(str(folder))
    check = recompute(find_paper("paper:rxnmapper"), model)
    assert check.count(FAILED) == 0
    # By hand, an atom of ethanol's product at a time.
    reaction = Reaction("CCO.BrCFC>>CCOCFC", (0, 1, 2, 4, 5, 6))
    tokens = ["[CLS]", *re.findall("Br|>>|.", reaction.smiles), "[SEP]"]
    trace = model.trace(ids=[model.tokenizer.id_of(token) for token in tokens])
    weights = trace["L10H5.weights"].numpy()
    reactants = [1, 2, 3, 5, 6, 7, 8]
    for place, atom, is_right in zip(
        range(10, 16), reaction.atoms, _mapped(Bench(model, None, [reaction]))[10, 5], strict=True
    ):
        both = [
            weights[place, other] + weights[other, place] if tokens[other] == tokens[place] else -1
            for other in reactants
        ]
        assert (int(np.argmax(both)) == atom) == bool(is_right)


def _rxnmapper() -> Path | None:
    folder = Path(os.environ.get("TINYTF_REAL_WEIGHTS", os.devnull))
    return next(iter(sorted(folder.rglob("albert_heads_8_uspto_all_1310k"))), None)


def test_a_paper_without_pairs_or_reactions_measures_none(model: tinytf.Model) -> None:
    paper = find_paper("paper:copying")
    with pytest.raises(UsageError, match="copying has no"):
        paper.make_pairs(model)
    with pytest.raises(UsageError, match="no reactions"):
        _mapped(Bench(model, paper.make_pairs, ()))
