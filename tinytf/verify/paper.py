"""The claims of a paper in TOML, measured again on a model: each holds, fails, or is not measured here."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tinytf.api import Model
from tinytf.errors import TinytfError, UsageError
from tinytf.estimate import Estimate
from tinytf.look.heads.kinds import LABELS
from tinytf.nearest import did_you_mean
from tinytf.pairs.pair import PairSet
from tinytf.pairs.tasks import PAIRS
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import listed, plural, several
from tinytf.text.printable import printable
from tinytf.verify.claims import read_claim
from tinytf.verify.example import ExampleError, TomlReader, require_fields
from tinytf.verify.measures import MEASURES, Bench, Reaction, Settings

PREFIX = "paper:"
_SHIPPED = Path(__file__).parents[1] / "assets" / "papers"
_HINT = "tinytf verify lists the papers that come with tinytf; docs/papers.md says how to write one"
_NUMBER = (int, Decimal)
_PAPER_FIELDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("title", "source", "about", "model", "needs"), (str,)),
    "pairs": (dict,),
    "reaction": (list,),
    "claim": (list,),
}
_CLAIM_FIELDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("words", "section", "measure", "why"), (str,)),
    **dict.fromkeys(("value", "tolerance", "least", "most"), _NUMBER),
}
_PAIRS_FIELDS: Mapping[str, tuple[type, ...]] = {"task": (str,), "file": (str,), "n": (int,), "seed": (int,)}
_MOST_PAIRS = 2000
HELD, FAILED, NOT_MEASURED = "held", "failed", "not measured here"


@dataclass(frozen=True)
class PaperClaim(Data):
    """A claim in ``words``, from a ``section``; its ``measure`` with ``settings``, empty where nothing measures it.

    It holds within ``tolerance`` of ``value``, from ``least`` on and up to ``most``, whichever are given. ``why`` says
    why it is not measured, or where a threshold comes from.
    """

    LESS: ClassVar = ("line",)

    words: str
    section: str
    measure: str
    settings: Settings
    value: float | None
    tolerance: float | None
    least: float | None
    most: float | None
    why: str
    line: int

    def holds(self, number: float) -> bool:
        """Whether a measured number is within the claim; false for a NaN."""
        near = self.value is None or abs(number - self.value) <= (self.tolerance or 0.0)
        return near and (self.least is None or number >= self.least) and (self.most is None or number <= self.most)

    @property
    def expected(self) -> str:
        """What is expected, in words."""
        parts = [] if self.value is None else [f"{self.value:g} ± {self.tolerance:g}"]
        parts += [] if self.least is None else [f"at least {self.least:g}"]
        parts += [] if self.most is None else [f"at most {self.most:g}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Paper(Data):
    """The claims of a paper; ``model`` is the built-in model that they are about, else ``needs`` says which is."""

    LESS: ClassVar = ("path", "claims", "pairs", "reactions")

    name: str
    title: str
    source: str
    about: str
    model: str
    needs: str
    claims: tuple[PaperClaim, ...]
    path: Path
    pairs: Mapping[str, Any] | None = None
    reactions: tuple[Reaction, ...] = ()

    def make_pairs(self, model: Model) -> PairSet:
        """The pairs that the claims are measured on. Raises UsageError where the paper has none."""
        if self.pairs is None:
            raise UsageError(f"{self.name} has no [pairs] to measure this on")
        if "file" in self.pairs:
            return PairSet.read(self.path.parent / self.pairs["file"])
        return model.pairs(self.pairs["task"], self.pairs.get("n", PAIRS), seed=self.pairs.get("seed", 0))


@dataclass(frozen=True)
class CheckedClaim(Data):
    """A claim, its ``state`` (held, failed, not measured here), what was measured, and why if it was not."""

    claim: PaperClaim
    state: str
    measured: Estimate | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**self.claim.to_dict(), "state": self.state, "measured": self.measured, "why": self.why}


@dataclass(frozen=True)
class PaperCheck(Report):
    """The claims of a paper, measured on a model."""

    KIND = "paper"
    EVENTS: ClassVar = {"claims": "claim"}
    ALWAYS_SAID = True

    paper: Paper
    claims: tuple[CheckedClaim, ...]
    stopped: bool = False

    def count(self, state: str) -> int:
        """How many claims are in a state."""
        return sum(claim.state == state for claim in self.claims)

    @property
    def holds(self) -> bool:
        """Whether no claim that was measured failed."""
        return not self.count(FAILED)

    def in_a_sentence(self) -> str:
        """How many of the claims hold, fail, and are not measured here."""
        where = f" on {self.about.model.name}" if self.about else ""
        held, failed, others = (self.count(state) for state in (HELD, FAILED, NOT_MEASURED))
        words = [several(held, "hold")] * bool(held) + [several(failed, "fail")] * bool(failed)
        words += [f"{others} {'is' if others == 1 else 'are'} not measured here"] * bool(others)
        said = (
            f"Of {plural(len(self.claims), 'claim')} of {self.paper.source or self.paper.name}, {listed(words)}{where}."
        )
        return printable(said, spaces=False)

    def fields(self) -> dict[str, Any]:
        counts = {"held": self.count(HELD), "failed": self.count(FAILED), "not_measured": self.count(NOT_MEASURED)}
        claims = [claim.to_dict() for claim in self.claims]
        for claim in claims:
            claim["measured"] = claim["measured"] and claim["measured"].to_dict()
        return {"paper": self.paper.to_dict(), **counts, "holds": self.holds, "claims": claims}


def shipped_papers() -> tuple[str, ...]:
    """The names of the papers that come with tinytf, sorted."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.toml")))


def find_paper(name: str) -> Paper | None:
    """A paper by ``paper:NAME`` or by its file; None for a file without claims, which is a worked example.

    Raises ExampleError for an unknown name, and with line and field for a claim that cannot be read.
    """
    if name.startswith(PREFIX):
        short = name.removeprefix(PREFIX)
        if short not in shipped_papers():
            raise ExampleError(f"there is no paper {short!r}", did_you_mean(short, shipped_papers()))
        return _Reader(_SHIPPED / f"{short}.toml", _HINT).paper()
    path = Path(name)
    if path.suffix.lower() != ".toml" or not path.exists():
        return None
    reader = _Reader(path, _HINT)
    return reader.paper() if "claim" in reader.data else None


def recompute(paper: Paper, model: Model, progress: Progress = ignore_progress) -> PaperCheck:
    """Measure every claim of a paper on a model.

    A claim whose measure raises an error of tinytf, such as for a head that the model lacks, is not measured, with that
    reason; nor are those that an interrupt leaves. Raises UsageError for a file of pairs that does not fit the model.
    """
    bench = Bench(model, paper.make_pairs, paper.reactions)
    if paper.pairs is not None and "file" in paper.pairs:
        bench.pairs  # noqa: B018 - refuse a file now, not claim by claim
    claims: list[CheckedClaim] = []
    stopped = False
    for claim in paper.claims:
        try:
            checked = CheckedClaim(claim, NOT_MEASURED, why="stopped before") if stopped else _checked(claim, bench)
        except KeyboardInterrupt:
            if not claims:
                raise
            checked, stopped = CheckedClaim(claim, NOT_MEASURED, why="stopped before"), True
        claims.append(checked)
        progress(len(claims), len(paper.claims))
    return PaperCheck(paper=paper, claims=tuple(claims), stopped=stopped, about=About(model))


def _checked(claim: PaperClaim, bench: Bench) -> CheckedClaim:
    if not claim.measure:
        return CheckedClaim(claim, NOT_MEASURED, why=claim.why)
    try:
        measured = MEASURES[claim.measure].compute(bench, claim.settings)
    except TinytfError as error:
        return CheckedClaim(claim, NOT_MEASURED, why=error.message)
    if math.isnan(measured.value):
        return CheckedClaim(claim, NOT_MEASURED, why="the measure is not a number on this model")
    return CheckedClaim(claim, HELD if claim.holds(measured.value) else FAILED, measured, claim.why)


class _Reader(TomlReader):
    def paper(self) -> Paper:
        data = self.data
        require_fields(data, _PAPER_FIELDS, self.fault)
        if not data.get("claim"):
            raise self.fault("there is no [[claim]], so there is nothing to measure")
        return Paper(
            name=self.path.stem,
            title=data.get("title", self.path.stem),
            source=data.get("source", ""),
            about=" ".join(data.get("about", "").split()),
            model=data.get("model", ""),
            needs=data.get("needs", ""),
            claims=tuple(self._claims()),
            path=self.path,
            pairs=self._pairs(),
            reactions=tuple(self._reactions()),
        )

    def _pairs(self) -> Mapping[str, Any] | None:
        pairs = self.data.get("pairs")
        if pairs is None:
            return None
        fault = partial(self.fault, table="pairs")
        require_fields(pairs, _PAIRS_FIELDS, fault)
        if ("task" in pairs) == ("file" in pairs):
            raise fault("the pairs are a task or a file", 'task = "ioi", or file = "pairs.jsonl"')
        if "file" in pairs and len(pairs) > 1:
            raise fault("n and seed are of a task, and a file has its own pairs", field="file")
        if not 1 <= pairs.get("n", 1) <= _MOST_PAIRS:
            raise fault(f"there are 1 to {_MOST_PAIRS:,} pairs", field="n")
        return dict(pairs)

    def _reactions(self) -> Iterator[Reaction]:
        for index, data in enumerate(self.data.get("reaction", ())):
            match data:
                case {"smiles": str(smiles), "atoms": [*atoms], **rest} if not rest and all(
                    type(atom) is int for atom in atoms
                ):
                    yield Reaction(smiles, tuple(atoms))
                case _:
                    raise self.fault(
                        "a reaction has smiles, a text, and atoms, whole numbers", table="reaction", index=index
                    )

    def _claims(self) -> Iterator[PaperClaim]:
        for index, data in enumerate(self.data["claim"]):
            fault = partial(self.fault, table="claim", index=index)
            if not isinstance(data, dict):
                raise fault("a claim is a table, [[claim]]")
            yield self._claim(data, fault, self.lines.of("claim", index, "measure"))

    def _claim(self, data: Mapping[str, Any], fault: Any, line: int) -> PaperClaim:
        name = data.get("measure", "")
        if name and name not in MEASURES:
            raise fault(f"there is no measure {name!r}", did_you_mean(name, MEASURES), field="measure")
        measure = MEASURES.get(name)
        own = {**measure.needs, **measure.takes} if measure else {}
        require_fields(data, {**_CLAIM_FIELDS, **{field: (kind,) for field, kind in own.items()}}, fault)
        if not data.get("words"):
            raise fault("a claim needs words")
        lacking = [field for field in measure.needs if field not in data] if measure else []
        if measure and "kind" in measure.takes and ("heads" in data) == ("kind" in data):
            raise fault(f"{name} takes heads or a kind", 'heads = ["L9H9"], or kind = "induction"', field="measure")
        if lacking:
            raise fault(f"{name} needs {lacking[0]!r}", field="measure")
        heads = data.get("heads", ["L0H0"])
        if not heads or not all(isinstance(head, str) for head in heads):
            raise fault("must be a list of heads, such as L9H9", field="heads")
        for field in {"kind", "first", "second"} & {*data}:
            if data[field] not in (kinds := [label.name for label in LABELS]):
                raise fault(f"there is no kind of head {data[field]!r}", did_you_mean(data[field], kinds), field=field)
        if data.get("how", "mean") not in ("mean", "zero"):
            raise fault("heads are replaced by their mean or by zero", field="how")
        numbers = {field: float(data[field]) for field in ("value", "tolerance", "least", "most") if field in data}
        if any(number != number for number in numbers.values()):
            raise fault("a number of the claim is NaN")
        if "tolerance" in numbers and ("value" not in numbers or numbers["tolerance"] < 0):
            raise fault("a tolerance is 0 or more, and goes with a value", field="tolerance")
        if measure and not numbers.keys() & {"value", "least", "most"}:
            raise fault("a claim that is measured needs a value, a least or a most")
        if not measure and not data.get("why"):
            raise fault("a claim without a measure needs a why, which says why it is not measured")
        if "value" in numbers and "tolerance" not in numbers:
            numbers["tolerance"] = read_claim(data["value"], None).tolerance.item()
        bounds = {field: numbers.get(field) for field in ("value", "tolerance", "least", "most")}
        return PaperClaim(
            words=" ".join(data["words"].split()),
            section=data.get("section", ""),
            measure=name,
            settings={field: data[field] for field in own if field in data},
            why=" ".join(data.get("why", "").split()),
            line=line,
            **bounds,
        )
