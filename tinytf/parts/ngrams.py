"""N-gram embeddings: a layer adds vectors of the last few tokens, looked up by hashes, to its streams (Qwen4-Exp).

The sizes of the tables and the numbers of the hash follow from the settings, as in transformers.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.fields import Limits
from tinytf.parts.gated_streams import norm_each
from tinytf.parts.part import COUNT, POSITIVE, Part, leaf, listed
from tinytf.parts.recurrence import activate, project
from tinytf.parts.row import STREAMS, WIDE, Config, Make, Step

if TYPE_CHECKING:
    from types import ModuleType

_MOST = 63
"""More tokens make no sense, and each n-gram lists a number for every token."""
_MASK = (1 << 64) - 1
_GAMMA, _PRIME = 0x9E3779B97F4A7C15, 10_007


@dataclass(frozen=True, kw_only=True)
class Ngrams(Part):
    """Layers with an ``ngram_number``, counted from 1, have ``ngram_heads`` tables for each order 2 … ``ngram_order``.

    A table has a prime number of rows, at least ``ngram_rows``, no two in the model as many; together they are filled
    up to a multiple of ``ngram_multiple``. The last tokens, back to one with the id ``ngram_end`` and not over it,
    are hashed, with numbers made from ``ngram_seed``, to a row of each; side by side these are ``d_ngram`` wide. Such
    vectors, projected, are gated in each stream by how well it fits a key made of them too, and added with a
    convolution of them over ``ngram_conv`` tokens, ``ngram_order`` apart (Qwen 2026).
    """

    ngram_number: int = leaf(0, COUNT, differs=True, off=0, said="n-gram embeddings number {}")
    ngram_order: int = leaf(3, Limits(least=2, most=_MOST), said="n-grams of up to {} tokens")
    ngram_heads: int = leaf(8, POSITIVE, said="{} tables for each order of n-grams")
    ngram_rows: int = leaf(20_000_000, POSITIVE, said="at least {} rows of a table of n-grams")
    ngram_multiple: int = leaf(128, POSITIVE, said="a multiple of {} rows of n-grams")
    ngram_seed: int = leaf(1234, COUNT, said="a seed of {} of the hash of n-grams")
    ngram_end: int = leaf(0, COUNT, said="token {} as the end of n-grams", zero="0")
    ngram_conv: int = leaf(4, POSITIVE, said="a convolution over {} tokens of n-grams")
    d_ngram: int = leaf(0, COUNT, said="n-gram embeddings {} wide", zero="d_model")
    ngram_parts: int = leaf(1, POSITIVE, said="tables of n-grams stored in {} parts")

    def fit(self, d_model: int, causal: bool) -> None:
        tables = (self.ngram_order - 1) * self.ngram_heads
        if self.ngram_number and (self.d_ngram or d_model) % tables:
            raise ConfigError(f"n-gram embeddings {self.d_ngram or d_model} wide do not divide among {tables} tables")
        if self.ngram_number and not causal:
            raise ConfigError("n-gram embeddings read from left to right, but causal is false")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.ngram_number:
            return {}
        tables = f"{self.ngram_heads} hashed tables each (seed {self.ngram_seed})"
        hashed = (
            f"number {self.ngram_number}: n-grams of 2 to {self.ngram_order} tokens after token {self.ngram_end} in"
        )
        words = listed(
            f"{hashed} {tables}",
            f"at least {self.ngram_rows:,} rows in each and a multiple of {self.ngram_multiple} in all",
            self.ngram_parts > 1 and f"stored in {self.ngram_parts} parts",
            bool(self.d_ngram) and f"{self.d_ngram} wide",
            f"a convolution over {self.ngram_conv} tokens",
        )
        return {"embeddings of layers": words}


def _mixed(value: int) -> int:
    """One number of SplitMix64 (Steele et al. 2014)."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=64)
def multipliers(vocab_size: int, order: int, number: int, seed: int) -> tuple[int, ...]:
    """What the hash multiplies the ids of the last ``order`` tokens by: odd, and no product overflows 64 bits."""
    half = max(1, ((1 << 63) - 1) // vocab_size // 2)
    first = seed + _PRIME * (number - 1)
    return tuple(2 * (_mixed((first + _GAMMA * back) & _MASK) % half) + 1 for back in range(1, order + 1))


@lru_cache(maxsize=64)
def table_sizes(least: int, count: int, number: int) -> tuple[int, ...]:
    """The rows of the ``count`` tables of n-gram embeddings ``number``: the next primes from ``least`` on."""
    primes, candidate = list[int](), least
    while len(primes) < count * number:
        if candidate > 1 and all(candidate % divisor for divisor in range(2, isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return tuple(primes[count * (number - 1) :])


def tables_of(c: Config) -> int:
    """How many tables a layer has."""
    return int((c.ngram_order - 1) * c.ngram_heads)


def sizes_of(c: Config) -> tuple[int, ...]:
    """The rows of each table of a layer."""
    return table_sizes(c.ngram_rows, tables_of(c), c.ngram_number)


def firsts_of(c: Config) -> tuple[int, ...]:
    """The row of each table's first among those of all tables of a layer."""
    return tuple(accumulate(sizes_of(c)[:-1], initial=0))


def multipliers_of(c: Config) -> tuple[int, ...]:
    """What the hash of a layer multiplies the ids of the last tokens by."""
    return multipliers(c.vocab_size, c.ngram_order, c.ngram_number, c.ngram_seed)


def rows_of(c: Config) -> int:
    """The rows of all tables of a layer, filled up to a multiple."""
    return -(-sum(sizes_of(c)) // c.ngram_multiple) * c.ngram_multiple if c.ngram_number else 0


def has_ngrams(c: Config) -> bool:
    """Whether a layer adds n-gram embeddings."""
    return bool(c.ngram_number > 0)


def windows_of(c: Config) -> int:
    """How many numbers a layer caches of a text of any length: ids as two numbers each, and a window of streams."""
    if not has_ngrams(c):
        return 0
    back = (c.ngram_conv - 1) * c.ngram_order
    return int(2 * (c.ngram_order - 1) + back * (c.extra_streams + 1) * c.d_model)


def _look_up(o: "ModuleType", c: Config) -> Any:
    if not has_ngrams(c):
        return o.LookupNgrams((), (), (), 0)
    return o.LookupNgrams(multipliers_of(c), sizes_of(c), firsts_of(c), c.ngram_end)


def _gate(o: "ModuleType", c: Config) -> Any:
    return o.MixStreams(((0.0,),) * (c.extra_streams + 1), weighted=1)


def _convolve(o: "ModuleType", c: Config) -> Any:
    return o.ShortConv(c.ngram_conv, apart=c.ngram_order, headed=False, tap="ngram tap")


_STREAM = ("token", "stream")


def _row(
    name: str, title: str, formula: str, axes: tuple[str, ...], inputs: tuple[str, ...], make: Make, **of: Any
) -> Step:
    """A row of a layer with n-gram embeddings; with ``weights``, its module has those."""
    if of.pop("weights", True):
        of = {"module": f"ngram.{name}", "late": True, **of}
    names = tuple(source if source in ("ids", "in") else f"ngram.{source}" for source in inputs)
    return Step(f"ngram.{name}", title, formula, axes, names, make=make, when=has_ngrams,
                **{"role": "embed", "absent": "this layer has no n-gram embeddings", **of})  # fmt: skip


ROWS: tuple[Step, ...] = (
    _row("tokens", "n-gram embeddings", "E_N[hashes of the last {ngram_order} of {0}]", ("token", "d_ngram"), ("ids",),
         _look_up, matrix="E_N"),
    _row("key", "keys of the n-grams", "{0}·W_NK", STREAMS, ("tokens",), project, matrix="W_NK"),
    _row("key_norm", "keys of the n-grams, each normed", "{norm}({0}) of each", STREAMS, ("key",), norm_each,
         matrix="gain"),
    _row("query", "streams, each normed for the n-grams", "{norm}({0}) of each", STREAMS, ("in",), norm_each,
         matrix="gain"),
    _row("fit", "fit of streams and n-grams", "{0}·{1} / √{d_model} of each", _STREAM, ("query", "key_norm"),
         lambda o, c: o.FitStreams(c.extra_streams + 1), weights=False),
    _row("root", "fit of streams and n-grams, its root", "sign({0})·√|{0}|", _STREAM, ("fit",),
         lambda o, _: o.Activate("signed_root"), weights=False),
    _row("gate", "gates of the n-grams", "σ({0})", _STREAM, ("root",), lambda o, _: o.Sigmoid(), weights=False),
    _row("value", "values of the n-grams", "{0}·W_NV", WIDE, ("tokens",), project, matrix="W_NV"),
    _row("gated", "values of the n-grams, gated for each stream", "{1} of each stream · {0}", STREAMS,
         ("value", "gate"), _gate, weights=False),
    _row("gated_norm", "gated n-grams, each normed", "{norm}({0}) of each", STREAMS, ("gated",), norm_each,
         matrix="gain"),
    _row("conv", "gated n-grams, convolved", "Σ w·{0} of {ngram_conv} tokens, {ngram_order} apart", STREAMS,
         ("gated_norm",), _convolve),
    _row("act", "gated n-grams, convolved and activated", "SiLU({0})", STREAMS, ("conv",), activate, weights=False),
    _row("out", "what the n-grams add to each stream", "{inputs}", STREAMS, ("gated", "act"), lambda o, _: o.Add(),
         weights=False, recorded=True),
    _row("sum", "streams and n-grams", "{inputs}", STREAMS, ("in", "out"), lambda o, _: o.Add(), weights=False,
         role="residual"),
)  # fmt: skip
"""From the streams that enter a layer to the streams that its mixer reads."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {"ngram_order": str(c.ngram_order), "ngram_conv": str(c.ngram_conv)}


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {"<streams in>": ("ngram.sum",) if has_ngrams(c) else ("in",)}
