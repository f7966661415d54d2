"""The logits of texts that grow by a token at a time, with or without a cache."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tinytf.errors import CacheError, GenerationError, UsageError
from tinytf.generate.decoder import PLAIN, Decoder, Kind, Look, is_watched, without_kernel
from tinytf.in_file import InFile
from tinytf.model.cache import KVCache
from tinytf.model.transformer import Transformer, evaluating
from tinytf.model.turn import using
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding, Token
from tinytf.tolerance import DECODED, INT8, allowed
from tinytf.trace.faults import first_not_finite, overflow_at
from tinytf.trace.hooks import tap_steps
from tinytf.trace.record import record


class Runner:
    """Runs texts of equal length that begin with the same ``prompt``.

    ``first`` runs the prompt, once for all texts; ``go_on`` appends a token to each. Where the context is full, its
    older half is dropped and the rest computed again; ``dropped`` counts these tokens. ``chunk`` is how many tokens of
    a prompt go through at a time (0: all), ``look`` is explained at Decoder. Logits are (B, V) in float32 on the
    processor, so that a seed draws the same everywhere.

    Tokens after the prompt go through the fast Decoder where it ``fits``, else through the model's modules. The first
    one goes through both, unless ``compare`` is false: where their logits differ by more than rounding (or int8
    weights) may cause, the modules continue alone, and ``note`` says so. Where an edit changes cached tokens, the cache
    is cleared, and every token after that computed from the whole text. Raises UsageError for a ``kind`` or ``look``
    that the model does not support.
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
        compare: bool = True,
    ) -> None:
        self.model, self.cache, self.chunk, self.look = model, cache, chunk, look
        self.texts = [list(prompt)]
        self.dropped, self.note, self._prompt, self._kind = 0, "", len(prompt), kind
        self._device = next(model.parameters()).device
        self._compare = compare
        with using(model):  # hooks of another thread do not decide what fits
            self._decoder = self._fitting_decoder(texts)
        if cache is not None and cache.position == 0:
            cache.select([0])

    def _fitting_decoder(self, texts: int) -> Decoder | None:
        model, cache, look, kind = self.model, self.cache, self.look, self._kind
        if kind != PLAIN and model.reads is not None:
            raise UsageError(
                "compiled and int8 decoding are of models of one stack", "leave out --compile and --quantize"
            )
        if kind != PLAIN and (lacking := without_kernel(model)):
            raise UsageError(
                f"compiled and int8 decoding have no kernel for: {'; '.join(lacking)}",
                "leave out --compile and --quantize",
            )
        if cache is not None and Decoder.fits(model) and (kind == PLAIN or not is_watched(model)):
            decoder = Decoder(model, cache, texts, kind)
            return decoder if look is None or decoder.can_look else None
        if kind != PLAIN and any(isinstance(parameter, InFile) for parameter in model.parameters()):
            raise UsageError("compiled and int8 decoding need the weights in memory", "leave out --keep-quantized")
        if kind != PLAIN or (look is not None and (cache is None or is_watched(model))):
            raise UsageError(
                "compiled and int8 decoding, and looking at attention, need a cache and a model without hooks or "
                "replaced parts",
                "leave out --no-cache, or --compile, --quantize and --head",
            )
        return None

    @property
    def full(self) -> bool:
        """Whether one more token would exceed the context."""
        return len(self.texts[0]) >= self.model.config.context

    def first(self) -> Tensor:
        """The logits after the prompt, (1, V)."""
        return self._ready(self._with_cache_if_it_holds(self._whole))

    def go_on(self, rows: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Keep the texts of ``rows``, append one of ``ids`` to each, and return the logits after it, (rows, V)."""
        full = self.full
        self.texts = [[*self.texts[row], token_id] for row, token_id in zip(rows, ids, strict=True)]
        if self.cache is not None:
            self.cache.select(rows)
        if full:
            self._slide()
        if full or self.cache is None or self._is_turned:
            return self._ready(self._with_cache_if_it_holds(self._whole))
        new, cache = torch.tensor(ids, device=self._device), self.cache
        return self._ready(self._with_cache_if_it_holds(lambda: self._next(cache, new)))

    def _with_cache_if_it_holds(self, compute: Callable[[], Tensor]) -> Tensor:
        """Logits (B, V) from ``compute``, or without a cache where an edit changes cached tokens, from then on."""
        try:
            return compute()
        except CacheError:
            if self.cache is None:
                raise
            self.cache.clear()
            self.cache = self._decoder = None
            return self._whole()

    def _next(self, cache: KVCache, ids: Tensor) -> Tensor:
        """Logits (B, V) after one more token of each text: ids (B,)."""
        if self._decoder is None:
            return self._by_modules(cache, ids, self.look)
        if not self._compare:
            return self._decoded(self._decoder, ids)
        self._compare = False
        expected = self._by_modules(cache, ids, None)
        cache.position -= 1  # decode the same token again, at the same position
        logits = self._decoded(self._decoder, ids)
        tolerance = INT8 if self._kind.quantize else DECODED
        difference, limit = _difference(logits, expected), allowed(tolerance, logits.dtype)
        if difference <= limit or (not math.isfinite(difference) and self._fault(logits)):
            return logits
        self.note = (
            f"fast decoding had a relative error of {difference:.2g} at its first token (limit {limit:g}), "
            "so the model's own modules decoded the text"
        )
        self._decoder = None
        cache.clear()  # wrong kernels may have written anywhere in it
        return self._whole()

    def _by_modules(self, cache: KVCache, ids: Tensor, look: Look | None) -> Tensor:
        with evaluating(self.model), torch.inference_mode(), _looked_at(self.model, look):
            return self.model.unembed(self.model.hidden(ids[:, None], cache=cache)[:, -1])

    def _decoded(self, decoder: Decoder, ids: Tensor) -> Tensor:
        try:
            with evaluating(self.model), self.undisturbed():
                return decoder(ids, self.look)
        except RuntimeError as error:
            if not self._kind.compile:
                raise
            message = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise GenerationError(
                f"torch cannot compile this: {message[:200]}",
                "--compile needs a C++ compiler, such as g++",
            ) from None

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Context in which torch uses one thread while numpy does the work.

        Idle threads of either library spin, and would take the processor from the other.
        """
        if self._decoder is None or self._decoder.threads_of_torch:
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with np.errstate(all="ignore"):  # numbers that are not finite are reported at the logits
                yield
        finally:
            torch.set_num_threads(threads)

    @property
    def _is_turned(self) -> bool:
        """Whether the text is now so long that RoPE turns it by other angles than the cached keys."""
        return self.cache is not None and self.cache.is_turned(len(self.texts[0]))

    def _slide(self) -> None:
        retained = max(1, (self.model.config.context + 1) // 2)
        self.dropped += len(self.texts[0]) - retained
        self.texts = [text[-retained:] for text in self.texts]
        if self.cache is not None:
            self.cache.clear()

    def _whole(self) -> Tensor:
        """Compute all tokens that are not cached yet, and the last one again if it is looked at: logits (B, V)."""
        ids = torch.tensor(self.texts, device=self._device)  # (B, T)
        length = ids.shape[1]
        if self.cache is not None:
            if self._is_turned:
                self.cache.clear()
            ids = ids[:, self.cache.position :]
        size = min(self.chunk, length) if self.chunk and self.cache is not None else length
        size = max(size, self.model.config.turned_alike_from(length))  # by the angles of the whole text
        with evaluating(self.model), torch.inference_mode():
            for piece in ids.split(size, dim=1):
                hidden = self.model.hidden(piece, cache=self.cache)
            logits = self.model.unembed(hidden[:, -1])
        if self.look is None or self.cache is None:
            return logits
        self.cache.position -= 1
        return self._next(self.cache, ids[:, -1])

    def _ready(self, logits: Tensor) -> Tensor:
        """The logits in float32 on the processor.

        Raises GenerationError where the logits of a text are not finite, naming the token and the first such step.
        """
        logits = logits.float().cpu()
        if np.isfinite(logits.numpy().max(-1)).all():
            return logits
        row = _broken_row(logits)
        fault = self._fault(logits)
        new = len(self.texts[row]) + self.dropped - self._prompt + 1
        raise GenerationError(
            f"the logits of new token {new:,} are not finite (largest: {float(logits[row].max())})"
            + (f"; they first appear at {fault}" if fault else ""),
            "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32",
        )

    def _fault(self, logits: Tensor) -> str | None:
        """The first step that is not finite in the model's own forward pass, for the text with such logits."""
        return first_fault(self.model, self.texts[_broken_row(logits)])


def first_fault(model: Transformer, ids: Sequence[int]) -> str | None:
    """The first step that is not finite for a text, and what it reaches if that is too large for its type."""
    tokens = tuple(Token(token_id, f"#{token_id}", 0, 0, b"", False) for token_id in ids)
    trace = record(model, Encoding("", tokens, ""), force=True)
    step = first_not_finite(trace)
    overflow = overflow_at(trace, step) if step else ""
    return f"{step}: {overflow}" if overflow else step


def _broken_row(logits: Tensor) -> int:
    return int((~logits.amax(-1).isfinite()).long().argmax())


def _difference(logits: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest finite expected logit, or to 1 where that is less."""
    logits, expected = logits.cpu().double(), expected.cpu().double()
    differences = torch.where(logits == expected, 0.0, (logits - expected).abs())  # −∞ in both is no difference
    return float(differences.max()) / max(1.0, float(expected.where(expected.isfinite(), 0.0).abs().max()))


@contextmanager
def _looked_at(model: Transformer, look: Look | None) -> Iterator[None]:
    """Context in which ``look`` is called with the attention weights of the last token."""
    if look is None:
        yield
        return
    table = table_of(model.config)
    layers = itertools.cycle(table.attention_layers)

    def tap(name: str, tensor: Tensor) -> Tensor:
        look(next(layers), tensor[:, :, -1])  # (B, H, Q, K) -> (B, H, K)
        return tensor

    with tap_steps(model, tap, (table.weights,)):
        yield
