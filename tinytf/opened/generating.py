"""Going on from a text with an open model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.generate.beam import BeamStep, search
from tinytf.generate.decoder import PLAIN, Kind
from tinytf.generate.loop import Looking, Step, stream
from tinytf.generate.pieces import Pieces
from tinytf.generate.samplers import Sampling
from tinytf.generate.score import Score, score
from tinytf.model.cache import KVCache, require_decoder
from tinytf.text.tokenizer import Encoding

if TYPE_CHECKING:
    pass

from tinytf.opened.base import Opened


@dataclass(frozen=True)
class Generating(Opened):
    """What a model says next, and how well it foresees what is said."""

    def stream(
        self,
        prompt: str | Encoding,
        *,
        max_tokens: int = 50,
        sampling: Sampling | None = None,
        seed: int = 0,
        samples: int = 1,
        stops: Sequence[str] = (),
        truncate: bool = False,
        use_cache: bool = True,
        cache: KVCache | None = None,
        on_overflow: str = "stop",
        top: int = 0,
        looking: Looking | None = None,
        chunk: int = 0,
        kind: Kind = PLAIN,
    ) -> Iterator[Step]:
        """Go on from ``prompt``, a Step a token, as soon as it is there; greedy unless ``sampling`` says otherwise.

        The prompt is a text, or what ``prompt`` made of one.

        Ends as ``tinytf.generate.loop.stream`` says, which explains the settings and whose errors these are too, and
        at the tokenizer's end tokens.
        """
        require_decoder(self.config)
        return stream(
            self.transformer,
            self._prompted(prompt, truncate).ids,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=seed,
            samples=samples,
            use_cache=use_cache,
            cache=cache,
            ends=self.tokenizer.end_ids,
            decode=self.tokenizer.decode,
            stops=stops,
            on_overflow=on_overflow,
            top=top,
            looking=looking,
            chunk=chunk,
            kind=kind,
        )

    def _prompted(self, prompt: str | Encoding, truncate: bool) -> Encoding:
        return self.prompt(prompt, truncate=truncate) if isinstance(prompt, str) else prompt

    def generate(self, prompt: str | Encoding, **settings: Any) -> str:
        """The text that follows ``prompt``, without it; ``settings`` are those of ``stream``."""
        return self.samples(prompt, 1, **settings)[0]

    def samples(self, prompt: str | Encoding, n: int, **settings: Any) -> list[str]:
        """``n`` texts that follow ``prompt``, drawn side by side; ``settings`` are those of ``stream``."""
        found = [""] * n
        for step in self.stream(prompt, samples=n, **settings):
            found[step.sample - 1] += step.text
        return found

    def beams(self, prompt: str | Encoding, *, truncate: bool = False, **settings: Any) -> Iterator[BeamStep]:
        """Beam search from ``prompt``; ``settings`` are those of ``tinytf.generate.beam.search``, errors too.

        The last step's ``finished`` are the continuations, the best first; ``text_after`` makes text of their ids.
        """
        require_decoder(self.config)
        ids = self._prompted(prompt, truncate).ids
        return search(self.transformer, ids, ends=self.tokenizer.end_ids, **settings)

    def text_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ``ids`` where they follow ``before``: a piece by itself can lose its leading space."""
        pieces = Pieces(self.tokenizer.decode, before, ())
        return "".join(pieces.add(token_id) for token_id in ids) + pieces.rest()

    def score(self, text: str, *, truncate: bool = False) -> Score:
        """How well the model foresaw each token of ``text``; errors as of ``encode`` and of a text of one token."""
        require_decoder(self.config)
        return score(self.transformer, self.encode(text, truncate=truncate).ids)
