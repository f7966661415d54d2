"""A model's architecture, parameters, memory and compute."""

from collections import Counter
from collections.abc import Iterator, Mapping

from tinytf.analysis.size import Info
from tinytf.config import ModelConfig
from tinytf.text.printable import printable
from tinytf_cli.numbers import in_bytes
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import notes
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Span, Table
from tinytf_cli.views.parts import verdict


def _flops(number: int) -> str:
    for unit, size in (("GFLOP", 10**9), ("MFLOP", 10**6), ("kFLOP", 10**3)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number} FLOP"


_HEADS = {
    "lm": "next token", "mlm": "masked token", "none": "none",
    "sequence": "classes of the text", "token": "classes of each token", "question": "where an answer lies",
}  # fmt: skip
_DECIDES = {"one": "", "several": "; each by itself", "number": "; a number"}
_ACROSS = {
    "head": ", on q and k too",
    "heads": ", on q and k too with a gain for each head",
    "all": ", on q and k too over all heads",
}


def _latent(config: ModelConfig) -> str:
    """Of latent attention the widths of values and of what keys and values, and queries, are made of."""
    ranks = f", of {config.kv_rank} numbers a token" + (f" (queries {config.q_rank})" if config.q_rank else "")
    return f", values {config.value_width}{ranks}" if config.kv_rank else ""


def _both_widths(config: ModelConfig) -> str:
    """The widths of a key and of a value, in letters."""
    return "2·d_head" if config.value_width == config.d_head else f"({config.d_head} + {config.value_width})"


def _scored(config: ModelConfig) -> str:
    """The products with the embeddings of distances, beside those with tokens."""
    times = "2 · " if config.distance_keys and config.distance_queries else ""
    return f" + L · 2 · {times}H·d_head · {2 * config.distances:,} distances" if config.distances else ""


def _positions(config: ModelConfig) -> str:
    kinds = Counter(_positions_of(config.at(layer)) for layer in range(config.n_layers))
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{words} in {count} of the layers" for words, count in kinds.items())


def _positions_of(config: ModelConfig) -> str:
    if config.positions == "rotary":
        factor, since = f"{config.rope_factor:g}", f"from {config.rope_original_context:,}"
        scaling = {
            "none": "",
            "linear": f", all frequencies / {factor}",
            "llama3": f", long waves / {factor} (llama3, {since})",
            "yarn": f", long waves / {factor} (yarn, {since})",
            "longrope": f", each frequency by its own factor (longrope, others {since} tokens on)",
        }
        turned = f", {config.rope.width} of {config.d_head} dimensions" if config.rope.width < config.d_head else ""
        return f"rotary (RoPE), θ = {config.rope_theta:g}{scaling[config.rope_scaling]}{turned}"
    if config.positions == "alibi":
        return f"ALiBi, slopes down to 2^−{config.alibi_max_bias:g}"
    first = f", the first at row {config.position_offset}" if config.position_offset else ""
    if config.positions == "none" and config.distances:
        return f"none of tokens; embeddings of {2 * config.distances:,} distances, which scores depend on"
    distances = f", and a bias of {config.relative_buckets} distances" if config.relative_buckets else ""
    distances += f", and embeddings of {2 * config.distances:,} distances" if config.distances else ""
    return config.positions.replace("_halves", ", sines before cosines") + first + distances


def _in_words(value: object) -> str:
    """A value of a model card; what it has by name, or several of, one after the other."""
    if isinstance(value, Mapping):
        each = ((name.replace("_", " "), _in_words(one), isinstance(one, Mapping)) for name, one in value.items())
        return ", ".join(f"{name} ({said})" if nested else f"{name} {said}" for name, said, nested in each)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


class InfoView:
    """The facts and figures of a configuration, drawn."""

    def __init__(self, found: Info) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """Architecture, parameter table, memory and compute."""
        c = self.found.config
        name = printable(self.found.name, spaces=False)
        yield Line([Span(name, "strong"), Span(f" · {c.kind} · {self.found.total:,} parameters")])
        yield from notes(self.found)
        yield Heading("architecture")
        facts = list(self._architecture().items())
        yield Table([Column("", [k for k, _ in facts]), Column("", [v for _, v in facts], shrink=20)], header=False)
        yield Heading("parameters")
        yield self._parameters()
        if self.found.counted is not None:
            yield verdict(self.found.holds, f"the opened model holds {self.found.counted:,}", indent=2)
        yield Heading("memory and compute")
        rows = self._figures()
        yield Table(
            [
                Column("", [row[0] for row in rows]),
                Column("", [row[1] for row in rows], "right"),
                Column("", [Span(row[2], "dim") for row in rows], shrink=20),
            ],
            header=False,
        )
        if self.found.card:
            yield Heading("model card")
            for key, value in self.found.card.items():
                name = printable(f"{key.replace('_', ' ')}: ", spaces=False)
                yield Line([Span(name, "dim"), Span(printable(_in_words(value), spaces=False))], 2)

    def _architecture(self) -> dict[str, str]:
        c = self.found.config
        groups = (
            f", {c.n_kv_heads} key-value heads ({c.heads_per_kv} query heads share one)" if c.heads_per_kv > 1 else ""
        )
        sight = "bidirectional" if c.looks_ahead else "causal"
        windows = Counter(c.at(layer).window for layer in range(c.n_layers))
        sight += "".join(
            f", window {window:,}" + (f" in {count} of the layers" if len(windows) > 1 else "")
            for window, count in windows.items()
            if window
        )
        chunks = Counter(c.at(layer).chunk for layer in range(c.n_layers))
        sight += "".join(
            f", within chunks of {chunk:,}" + (f" in {count} of the layers" if len(chunks) > 1 else "")
            for chunk, count in chunks.items()
            if chunk
        )
        biases = [n for n, on in (("q/k/v", c.qkv_bias), ("o", c.o_bias), ("feed-forward", c.ffn_bias)) if on]
        norm, gains = {"layernorm": ("LayerNorm", 2), "rmsnorm": ("RMSNorm", 1)}[c.norm]
        lacking = "" if len(c.norm_parameters) == gains else ", no bias" if c.norm_gain else ", no gain"
        kind = "mlm" if c.head == "lm" and not c.causal else c.head
        head = _HEADS[kind] + (f": {printable(c.labels_in_words, spaces=False)}" if c.labels else "")
        head += _DECIDES[c.decides]
        of_heads = _ACROSS[c.qk_norm_across] if c.qk_norm else ""
        tied = ", tied to the token embeddings" if c.tied_head and c.head != "none" else ""
        return {
            "family": self.found.family,
            "attention": f"{sight}, {c.n_layers} layers × {c.n_heads} heads{groups}"
            + (f", the layers with {c.layer_groups} sets of weights" if c.layer_groups > 1 else "")
            + (", all layers with the same weights" if c.layer_groups == 1 else ""),
            "widths": f"d_model {c.d_model}, d_head {c.d_head}{_latent(c)}, d_ff {c.d_ff}"
            + (f", embeddings {c.d_embed}" if c.d_embed else ""),
            "vocabulary": f"{c.vocab_size:,} tokens, context {c.context:,}",
            "positions": _positions(c),
            "norm": f"{norm} {c.normed}, ε = {c.norm_eps:g}{lacking}" + of_heads,
            "feed-forward": c.activation + (", gated" if c.gated else ""),
            "biases": ", ".join(biases) or "none",
            "head": head + tied,
        }

    def _parameters(self) -> Table:
        parts = self.found.parts
        names = [*(p.name for p in parts), "total"]
        formulas: list[Cell] = [*(Span(p.formula, "dim") for p in parts), ""]
        symbols: list[Cell] = [
            *(Span(p.formula.partition(" = ")[0] if p.each else p.formula, "dim") for p in parts),
            "",
        ]
        return Table(
            [
                Column("component", [*names[:-1], Span("total", "strong")]),
                Column("each", [*(f"{p.each:,}" for p in parts), ""], "right"),
                Column("copies", [*(f"× {p.copies}" if p.copies > 1 else "" for p in parts), ""], "right", drop=2),
                Column("total", [*(f"{p.total:,}" for p in parts), Span(f"{self.found.total:,}", "strong")], "right"),
                Column("share", [*(f"{100 * p.total / self.found.total:.1f} %" for p in parts), ""], "right"),
                Column("formula", formulas, narrow=symbols, shrink=12),
            ],
            rule_after=frozenset({len(parts) - 1}),
        )

    def _figures(self) -> list[tuple[str, str, str]]:
        c, work, memory = self.found.config, self.found.work, self.found.memory_bytes
        rows = [
            ("weights, fp32", in_bytes(memory["fp32"]), "4 bytes per parameter"),
            ("weights, bf16", in_bytes(memory["bf16"]), "2 bytes per parameter"),
            ("compute per token", _flops(work.total), f"at {c.context:,} tokens; multiply-add = 2 FLOP"),
            (
                "  projections",
                _flops(work.projections),
                "L · 2 · (their matrices)" if c.kv_rank else "L · 2 · d_model · (2·H + 2·G)·d_head",
            ),
            ("  attention", _flops(work.attention), f"L · 2 · H·{_both_widths(c)} · visible tokens{_scored(c)}"),
            ("  feed-forward", _flops(work.feed_forward), f"L · 2 · {3 if c.gated else 2} · d_model · d_ff"),
            ("  head", _flops(work.head), "2 · d_model · V"),
        ]
        if c.causal:
            cache = self.found.cache_bytes["fp32"]
            rows.append(("KV cache per token, fp32", in_bytes(cache), f"L · G · {_both_widths(c)} · 4 bytes"))
            rows.append(("KV cache, full context", in_bytes(cache * c.context), f"× {c.context:,} tokens"))
        return rows
