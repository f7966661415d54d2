"""The logits after texts that grow by a token at a time, with what was computed before kept in a cache or not."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.decoder import PLAIN, Decoder, Kind, Look
from tinytf.model.cache import KVCache
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding, Token
from tinytf.trace.faults import first_not_finite
from tinytf.trace.record import record


class Runner:
    """Texts of one length that share their beginning, the ``prompt``.

    ``first`` runs the prompt, once for all of them; ``go_on`` appends a token to each. Where the context is full,
    the older half of it is let go and the rest computed anew: ``dropped`` counts the tokens. ``chunk`` is how many
    tokens of a prompt go through at a time (0: all), ``look`` is as of Decoder. Logits are (B, V), on the processor
    and in float32, so that a seed draws the same everywhere.
    """

    def __init__(
        self,
        model: Transformer,
        prompt: Sequence[int],
        cache: KVCache | None = None,
        *,
        chunk: int = 0,
        texts: int = 1,
        kind: Kind = PLAIN,
        look: Look | None = None,
    ) -> None:
        self.model, self.cache, self.chunk, self.look = model, cache, chunk, look
        self.texts = [list(prompt)]
        self.dropped, self._prompt, self._kind = 0, len(prompt), kind
        self._device = next(model.parameters()).device
        self._decoder: Decoder | None = None
        if cache is not None and Decoder.fits(model):
            self._decoder = Decoder(model, cache, texts, kind)
        elif kind != PLAIN or look is not None:
            raise UsageError(
                "only decoding with a cache, of a model that is nowhere hooked or changed, is compiled, in int8 or "
                "looked at",
                "leave out --no-cache, or --compile, --quantize and --head",
            )
        if cache is not None and cache.position == 0:
            cache.select([0])

    @property
    def full(self) -> bool:
        """Whether one more token needs more than the context."""
        return len(self.texts[0]) >= self.model.config.context

    def first(self) -> Tensor:
        """The logits after the prompt, (1, V)."""
        return self._whole(0 if self.cache is None else self.cache.position)

    def go_on(self, rows: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Keep the texts of ``rows``, append one of ``ids`` to each: the logits after that, (rows, V)."""
        full = self.full
        self.texts = [[*self.texts[row], token_id] for row, token_id in zip(rows, ids, strict=True)]
        if self.cache is not None:
            self.cache.select(rows)
        if full:
            self._slide()
        if full or self.cache is None or self._decoder is None:
            return self._whole(0 if self.cache is None else self.cache.position)
        with _evaluating(self.model), self.undisturbed():
            return self._ready(self._decode(torch.tensor(ids, device=self._device)))

    def _decode(self, ids: Tensor) -> Tensor:
        assert self._decoder is not None
        try:
            return self._decoder(ids, self.look)
        except RuntimeError as error:
            if not self._kind.compile:
                raise
            said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise GenerationError(
                f"torch cannot compile this: {said[:200]}",
                "it takes a C++ compiler, such as g++; or leave out --compile",
            ) from None

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """A stretch in which torch starts no threads of its own where numpy's do the work.

        Those of either wait for more to do by spinning, and would take the processor from the others.
        """
        if self._decoder is None or self._decoder.threads_of_torch:
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with np.errstate(all="ignore"):  # what is not finite is found in the logits, and explained there
                yield
        finally:
            torch.set_num_threads(threads)

    def _slide(self) -> None:
        kept = max(1, (self.model.config.context + 1) // 2)
        self.dropped += len(self.texts[0]) - kept
        self.texts = [text[-kept:] for text in self.texts]
        if self.cache is not None:
            self.cache.clear()

    def _whole(self, start: int) -> Tensor:
        """Run what is not in the cache yet; the last token alone where it is looked at."""
        ids = torch.tensor(self.texts, device=self._device)[:, start:]  # (B, T)
        last = None
        if self.look is not None and self._decoder is not None:
            ids, last = ids[:, :-1], ids[:, -1]
        logits = None
        with _evaluating(self.model), torch.inference_mode():
            size = self.chunk if self.chunk and self.cache is not None else max(1, ids.shape[1])
            for piece in ids.split(size, dim=1):
                if piece.shape[1]:
                    hidden = self.model.hidden(piece, cache=self.cache)
                    logits = None if last is not None else hidden[:, -1]
            if logits is not None:
                logits = self.model.unembed(logits)
        if last is not None and self._decoder is not None:
            with _evaluating(self.model), self.undisturbed():
                logits = self._decode(last)
        assert logits is not None
        return self._ready(logits)

    def _ready(self, logits: Tensor) -> Tensor:
        logits = logits.float().cpu()
        if not np.isfinite(logits.numpy().max(-1)).all():
            self._explain(logits)
        return logits

    def _explain(self, logits: Tensor) -> None:
        """Raise GenerationError with the token and the step of the forward pass where the numbers go wrong."""
        row = int((~logits.amax(-1).isfinite()).nonzero()[0])
        text = self.texts[row]
        tokens = tuple(Token(token_id, f"#{token_id}", 0, 0, b"", False) for token_id in text)
        found = first_not_finite(record(self.model, Encoding("", tokens, ""), force=True))
        where = f"; they first appear at {found}" if found else ""
        new = len(text) + self.dropped - self._prompt + 1
        raise GenerationError(
            f"the logits of new token {new:,} are not finite (largest: {float(logits[row].max())}){where}",
            "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32",
        )


@contextmanager
def _evaluating(model: Transformer) -> Iterator[None]:
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
