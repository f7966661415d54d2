"""Reports of generation: drawn texts, and the hypotheses of a beam search."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, Self, TypeVar

from tinytf.generate.beam import BeamOptions, BeamStep, Hypothesis
from tinytf.generate.decoder import PLAIN, Kind
from tinytf.generate.loop import (
    CONTEXT_FULL,
    END_TOKEN,
    MAX_TOKENS,
    STOP_STRING,
    GeneratedToken,
    Looking,
    StreamOptions,
)
from tinytf.generate.pieces import text_of
from tinytf.generate.samplers import Sampling
from tinytf.generate.score import QuantizationCost
from tinytf.model.cache import LayerUse
from tinytf.report import SCHEMA_VERSION, About, Report, plain, text_data
from tinytf.sentences import first_of, percent
from tinytf.text.tokenizer import Encoding

StepT = TypeVar("StepT")
AnyContinued = TypeVar("AnyContinued", bound="Continued[Any]")

INTERRUPTED = "interrupted"
_ENDS = {
    END_TOKEN: "it ended the text itself",
    STOP_STRING: "the text came to --stop",
    MAX_TOKENS: "it reached the limit of new tokens",
    CONTEXT_FULL: "its context was full",
    INTERRUPTED: "it was interrupted",
}
"""Why a text ended, in words."""
_NAMED = 4
"""The most tokens that the sentence of several samples names."""


@dataclass(frozen=True, kw_only=True)
class Continued(Report, Generic[StepT]):
    """The continuation of a ``prompt``, step by step; ``interrupted`` says that the user ended it early.

    Its events can be sent while it is computed: ``first_event`` needs no step, ``step_event`` one, ``last_events``
    all of them. ``kind`` is how it was computed, ``int8_cost`` the effect of 8-bit weights on the loss of the text.
    ``times`` are the seconds (of time.perf_counter) when each step was ready.
    """

    prompt: Encoding
    steps: tuple[StepT, ...] = ()
    times: tuple[float, ...] = ()
    interrupted: bool = False
    kind: Kind = PLAIN
    int8_cost: QuantizationCost | None = None

    @property
    def now(self) -> Self:
        """The report with the steps that are there: all of them, unlike one that is ``Underway``."""
        return self

    def coming(self) -> Iterator[StepT]:
        """Yield the steps."""
        return iter(self.steps)

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def _step(self, step: StepT) -> dict[str, Any]:
        raise NotImplementedError

    def _outcome(self) -> dict[str, Any]:
        return {}

    @property
    def text_ids(self) -> list[int]:
        """The ids of the prompt and of the first text that follows it."""
        return self.prompt.ids

    @property
    def not_shown(self) -> Counter[int]:
        """How often each token came that the text leaves out: special ones, and ids beyond the vocabulary."""
        return Counter()

    def _without_text(self, ids: Iterable[int]) -> Counter[int]:
        assert self.about is not None
        is_shown = self.about.model.tokenizer.is_shown
        return Counter(token_id for token_id in ids if not is_shown(token_id))

    def _noted_not_shown(self) -> dict[str, Any]:
        tokens = [{**self.named(token_id), "count": count} for token_id, count in self.not_shown.items()]
        return {"not_shown": tokens} if tokens else {}

    @property
    def tokens_per_second(self) -> float | None:
        """The measured speed; None where it was not measured."""
        return None

    @property
    def note(self) -> str:
        """Why fast decoding was given up; empty where it was not."""
        return getattr(self.steps[-1], "note", "") if self.steps else ""

    @property
    def dropped(self) -> int:
        """How many of the oldest tokens the model no longer saw at the end."""
        return max((getattr(step, "dropped", 0) for step in self.steps), default=0)

    def _noted(self) -> dict[str, str]:
        return {"note": self.note} if self.note else {}

    def fields(self) -> dict[str, Any]:
        steps = [self._step(step) for step in self.steps]
        return {"prompt": text_data(self.prompt), **self._settings(), **self._outcome(), "steps": steps}

    def first_event(self) -> dict[str, Any]:
        about = {} if self.about is None else self.about.to_dict()
        settings = {"prompt": text_data(self.prompt), **self._settings()}
        return {"type": self.KIND, "schema_version": SCHEMA_VERSION, **about, **settings}

    def step_event(self, step: StepT) -> dict[str, Any]:
        return {"type": "step", **self._step(step)}

    def last_events(self) -> Iterator[dict[str, Any]]:
        if outcome := self._outcome():
            yield {"type": "end", **({"sentence": self.sentence} if self.sentence else {}), **outcome}

    def events(self) -> Iterator[dict[str, Any]]:
        yield self.first_event()
        yield from map(self.step_event, self.steps)
        yield from self.last_events()


@dataclass(frozen=True, kw_only=True)
class Generation(Continued[GeneratedToken]):
    """Texts that follow a prompt: ``samples`` of them, numbered from 1; sample i was drawn with ``seed`` + i − 1.

    ``cache`` is the use of the cache at the end, a row per layer.
    """

    KIND = "generate"
    TABLE = ("steps",)

    sampling: Sampling
    seed: int = 0
    samples: int = 1
    looking: Looking | None = None
    cache: tuple[LayerUse, ...] | None = None

    @classmethod
    def begin(cls, about: About, prompt: Encoding, options: StreamOptions, **more: Any) -> Self:
        """The report before its first step; ``more`` are fields of a subclass."""
        return cls(
            about=about, prompt=prompt, kind=options.kind, sampling=options.sampling or Sampling(),
            seed=options.seed, samples=options.samples, looking=options.looking, **more,
        )  # fmt: skip

    def of(self, sample: int) -> list[GeneratedToken]:
        """The steps of one sample."""
        return [step for step in self.steps if step.sample == sample]

    def text(self, sample: int = 1) -> str:
        return "".join(step.text for step in self.of(sample))

    def hidden_in(self, steps: Iterable[GeneratedToken]) -> Counter[int]:
        """How often each token came in some steps that their text leaves out, but for end tokens that end it."""
        return self._without_text(step.id for step in steps if step.ended != END_TOKEN)

    @property
    def not_shown(self) -> Counter[int]:
        return self.hidden_in(self.steps)

    def ended(self, sample: int = 1) -> str:
        """Why a sample ended; empty if it has not."""
        steps = self.of(sample)
        return (steps[-1].ended if steps else "") or (INTERRUPTED if self.interrupted else "")

    @property
    def text_ids(self) -> list[int]:
        return [*self.prompt.ids, *(step.id for step in self.of(1))]

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of all samples together, without their first two tokens, which include one-time setup."""
        start = 2 * self.samples
        if len(self.times) <= start + 1:
            return None
        return (len(self.times) - start) / (self.times[-1] - self.times[start - 1])

    def in_a_sentence(self) -> str:
        """How many tokens came and why no more, and the least probable of them beside the best other candidate.

        Of several texts, how many first tokens they share, and with which they go on.
        """
        if not self.steps:
            return ""
        if self.samples > 1:
            return self._in_common()
        least = min(self.steps, key=lambda step: step.log_probability)
        others = [candidate for candidate in least.candidates if candidate.id != least.id]
        rival = max(others, key=lambda candidate: candidate.probability, default=None)
        beside = f" beside {percent(rival.probability)} for {self.shown(rival.id)}" if rival else ""
        count = len(self.steps)
        least_sure = f"{self.shown(least.id)} ({percent(math.exp(least.log_probability))}{beside})"
        came = (
            f"The model added {count:,} tokens, least sure of {least_sure}"
            if count > 1
            else (f"The model added {least_sure}")
        )
        return f"{came}; {_ENDS[self.ended()]}." if self.ended() else f"{came}."

    def _in_common(self) -> str:
        """How many first tokens the samples share, and with which they go on."""
        texts = [ids for sample in range(1, self.samples + 1) if (ids := [step.id for step in self.of(sample)])]
        shared = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(*texts, strict=False)))
        counts = Counter(ids[shared] for ids in texts if len(ids) > shared).most_common()
        if not counts:
            return f"All {len(texts):,} texts are the same."
        then = first_of([f"{self.shown(token)} ({count:,})" for token, count in counts], _NAMED)
        if not shared:
            return f"The {len(texts):,} texts begin with {then}."
        same = "the same token" if shared == 1 else f"the same {shared:,} tokens"
        return f"The {len(texts):,} texts begin with {same} and go on with {then}."

    def _settings(self) -> dict[str, Any]:
        return {"sampling": {**plain(self.sampling), "seed": self.seed}}

    def _step(self, step: GeneratedToken) -> dict[str, Any]:
        """The fields of one token; attention, where it was looked at, as rows of weights."""
        return {
            "sample": step.sample,
            "number": step.number,
            **self.named(step.id),
            "text": step.text,
            "log_probability": step.log_probability,
            "rank": step.rank,
            "surprise_bits": step.surprise,
            "entropy_bits": step.entropy,
            "dropped": step.dropped,
            "candidates": [
                {**self.named(candidate.id), "probability": candidate.probability, "drawn": candidate.drawn}
                for candidate in step.candidates
            ],
            **({} if step.attention is None else {"attention": step.attention.tolist()}),
        }

    def _outcome(self) -> dict[str, Any]:
        numbers = range(1, self.samples + 1)
        samples = [{"sample": number, "text": self.text(number), "ended": self.ended(number)} for number in numbers]
        return {
            "text": samples[0]["text"],
            "ended": samples[0]["ended"],
            "samples": samples,
            **self._noted_not_shown(),
            "cache": plain(self.cache),
            **({} if self.kind == PLAIN else {"decoding": self._decoding()}),
            **self._noted(),
        }

    def _decoding(self) -> dict[str, Any]:
        return {
            "compiled": self.kind.compile,
            "int8": self.kind.quantize,
            "tokens_per_second": self.tokens_per_second,
            "int8_cost": plain(self.int8_cost),
        }


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Continued[BeamStep]):
    """The hypotheses of every step of a beam search, and the best ``count`` of the finished ones."""

    KIND = "beam_search"
    TABLE = ("hypotheses",)

    beams: int
    length_penalty: float
    count: int = 1

    @classmethod
    def begin(cls, about: About, prompt: Encoding, options: BeamOptions, count: int | None = None) -> Self:
        """The report before its first step."""
        return cls(
            about=about, prompt=prompt, kind=options.kind, beams=options.beams,
            length_penalty=options.length_penalty, count=count or options.beams,
        )  # fmt: skip

    @property
    def best(self) -> tuple[Hypothesis, ...]:
        """The finished hypotheses, best first; of an interrupted search without any, the running ones."""
        return (self.steps[-1].finished or self.steps[-1].running)[: self.count] if self.steps else ()

    @property
    def ended(self) -> str:
        return INTERRUPTED if self.interrupted else self.steps[-1].ended if self.steps else ""

    @property
    def text_ids(self) -> list[int]:
        return [*self.prompt.ids, *(self.best[0].ids if self.best else ())]

    @property
    def not_shown(self) -> Counter[int]:
        return self._without_text(token_id for hypothesis in self.best for token_id in _inside(hypothesis))

    def text_of(self, hypothesis: Hypothesis) -> str:
        """The text of a hypothesis, without its end token."""
        assert self.about is not None
        return text_of(self.about.model.tokenizer.decode, self.prompt.ids, _inside(hypothesis))

    def in_a_sentence(self) -> str:
        """The probabilities of the best text and of the next best, and the first token in which they differ."""
        if not self.best:
            return ""
        best, *others = self.steps[-1].finished or self.steps[-1].running
        found = f"The best text that the {self.beams:,} beams found has a probability of "
        found += percent(math.exp(best.log_probability))
        if not others:
            return f"{found}."
        after = percent(math.exp(others[0].log_probability))
        found += ", and so has the next" if found.endswith(after) else f", the next {after}"
        pairs = enumerate(zip(best.ids, others[0].ids, strict=False), 1)
        number, token, other = next(((i, a, b) for i, (a, b) in pairs if a != b), (0, 0, 0))
        if not number:
            return f"{found}; one begins with the other."
        return f"{found}; new token {number:,} is {self.shown(token)} in one and {self.shown(other)} in the other."

    def _settings(self) -> dict[str, Any]:
        return {"beams": self.beams, "length_penalty": self.length_penalty}

    def _step(self, step: BeamStep) -> dict[str, Any]:
        return {
            "number": step.number,
            "running": plain(step.running),
            "finished": plain(step.finished),
            "pruned": plain(step.pruned),
        }

    def _outcome(self) -> dict[str, Any]:
        best = [{"text": self.text_of(hypothesis), **plain(hypothesis)} for hypothesis in self.best]
        cost = {} if self.int8_cost is None else {"int8_cost": plain(self.int8_cost)}
        return {
            "text": best[0]["text"] if best else "",
            "ended": self.ended,
            "hypotheses": best,
            **self._noted_not_shown(),
            **self._noted(),
            **cost,
        }


def _inside(hypothesis: Hypothesis) -> Sequence[int]:
    """The ids of a hypothesis, without its end token."""
    return hypothesis.ids[:-1] if hypothesis.ended else hypothesis.ids
