"""Lessons about the rest of a block: residual, norm, feed-forward, and the stack of blocks."""

import math
from collections.abc import Callable

import numpy as np

from tinytf.lessons.asking import bracketed, figure
from tinytf.lessons.data import Figure, Figures, Lesson
from tinytf.lessons.live import Live
from tinytf.lessons.titles import TITLES
from tinytf.steps.operations import Norm


def residual(live: Live, number: int) -> Lesson:
    here, table = live.here, live.trace.steps
    total = table.by_name["mid" if table.has("mid", 0) else "out"]
    name = total.inputs[1]
    before, added = live.at("L0.in")[here], live.at(f"L0.{name}")[here]
    place = int(np.abs(added).argmax())
    x, attn = float(before[place]), float(added[place])
    question = live.asked("residual").number(
        f"In dimension {place} of token {here}, {live.token(here)}, x is {figure(x)} and attention adds "
        f"{figure(attn)}. What would stand there if attention had found nothing, and gave 0?",
        x,
        [x + attn, attn, 0.0, x - attn],
        f"x + 0 = {figure(x)}: a part that has nothing to say leaves the token as it is. "
        f"With attention it is {figure(x + attn)}.",
    )
    parts = [("x", "in"), *((part, part) for part in total.inputs[1:]), (total.formula, total.name)]
    rows = tuple((said, float(np.linalg.norm(live.at(f"L0.{step}")[here]))) for said, step in parts)
    attends = f"attention({'norm1(x)' if table.by_name['q'].inputs == ('norm1',) else 'x'})"
    adds = f"attn_norm({attends})" if name == "attn_norm" else attends
    return Lesson(
        number, "residual", TITLES["residual"],
        "A block does not replace a token's vector, it adds to it. So nothing is lost on the way up, every layer can "
        "read what any layer below wrote, and the gradient has a straight way down.",
        f"{total.name} = {total.formula}",
        f"{total.name} = x + {adds}{' + ffn(norm2(x))' if len(parts) > 3 else ''}",
        f"L0.{total.name}[{here},{place}]",
        question,
        shown=(f"L0.in[{here}]", f"L0.{name}[{here}]"),
        revealed=(f"L0.in[{here}]", f"L0.{name}[{here}]", f"L0.{total.name}[{here}]"),
        figures=Figures((f"vector of {live.token(here)}", "length"), rows),
    )  # fmt: skip


_WHEN = {
    "pre": "before each part, so the residual stream itself is never normed",
    "post": "after each sum, so what goes up the stack is always normed",
    "both": "before each part and what each part adds, and the residual stream itself is never normed",
    "output": "what each part adds, and the residual stream itself is never normed",
}


def norm(live: Live, number: int) -> Lesson:
    config, here = live.config, live.here
    first = next(step for step in live.trace.steps.layer_steps if isinstance(step.operation, Norm) and step.reads)
    own, layer_norm, source = f"L0.{first.name}", config.norm == "layernorm", f"L0.{first.inputs[0]}"
    x = live.at(source)[here]
    mean = float(x.mean()) if layer_norm else 0.0
    size = math.sqrt(float(((x - mean) ** 2).mean()) + config.norm_eps)
    place = int(np.abs(x - mean).argmax())
    value = float(x[place])
    right = (value - mean) / size
    of = (
        f"mean {figure(mean)} and standard deviation {figure(size)}"
        if layer_norm
        else f"root mean square {figure(size)}"
    )
    got = float(live.at(f"{own}[{here},{place}]"))
    learned = "gain and bias" if layer_norm else "gain"
    taken = f"({figure(value)} − {bracketed(mean)})" if layer_norm else figure(value)
    question = live.asked("norm").number(
        f"Token {here}, {live.token(here)}, has {of}; its dimension {place} is {figure(value)}. "
        f"What does the norm make of that, before its {learned}?",
        right,
        [value - size, right / size, value * size, right * right, value, -right],
        f"{taken} / {figure(size)} = {figure(right)}. The learned {learned} of that dimension "
        f"make{'s' if not layer_norm else ''} it {figure(got)}.",
    )
    name = "LayerNorm" if layer_norm else "RMSNorm"
    does = (
        "takes off the mean and divides by the standard deviation"
        if layer_norm
        else "divides by the root mean square and leaves the mean alone"
    )
    when = _WHEN[config.norm_order]
    return Lesson(
        number, "norm", TITLES["norm"],
        f"Sums make vectors grow, and the next part would meet other sizes at every layer. {name} {does}, for each "
        f"token by itself. This model norms {when}.",
        "(x − mean) / √(variance + ε) · gain + bias" if layer_norm else "x / √(mean of x² + ε) · gain",
        f"n = F.{'layer_norm' if layer_norm else 'rms_norm'}(x, ({config.d_model},), gain"
        f"{', bias' if layer_norm else ''}, eps={config.norm_eps:g})",
        f"{own}[{here},{place}]",
        question,
        focus=here,
        shown=(source,),
        revealed=(own,),
    )  # fmt: skip


def feed_forward(live: Live, number: int) -> Lesson:
    config, here = live.config, live.here
    width, hidden, matrices = config.d_model, config.d_ff, 3 if config.gated else 2
    biases = (matrices - 1) * hidden + width if config.ffn_bias else 0
    product = width * hidden
    right = matrices * product + biases
    wanted = "gate, up and down" if config.gated else "W₁ and W₂"
    with_bias = ", biases included" if biases else ", and there are no biases"
    question = live.asked("feed-forward").number(
        f"How many parameters are in one feed-forward with d_model {width:,} and d_ff {hidden:,} "
        f"({wanted}{with_bias})?",
        right,
        [product, (5 - matrices) * product, 4 * width * width, width + hidden, 4 * product],
        f"{matrices} × {width:,} × {hidden:,}"
        + (f" + {biases:,} biases" if biases else "")
        + f" = {right:,}; attention in the same block has "
        f"{sum(p.numel() for p in live.model.transformer.get_submodule('blocks.0.attention').parameters()):,}.",
    )
    act = live.at("L0.ffn.act")[here]
    quiet = float((np.abs(act) < 0.01 * max(np.abs(act).max(), 1e-30)).mean())
    names = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu", "silu": "silu"}
    called = f"F.{names[config.activation]}"
    how = ", approximate='tanh'" if config.activation == "gelu_tanh" else ""
    inner = f"{called}(W_gate(n){how}) * W_up(n)" if config.gated else f"{called}(W_1(n){how})"
    gate = " A gate, made of the same input, decides how much of each number passes." if config.gated else ""
    steps = live.trace.steps.by_name
    return Lesson(
        number, "feed-forward", TITLES["feed-forward"],
        f"Attention moves, feed-forward works: each token alone is spread out to {hidden:,} numbers, bent by a curve "
        f"and folded back to {width:,}.{gate} For this token {quiet:.0%} of them stay near 0.",
        f"ffn = {steps['ffn.act'].formula}·{'W_down' if config.gated else 'W₂'}" + (" + b" if config.ffn_bias else ""),
        f"ffn = {'W_down' if config.gated else 'W_2'}({inner})",
        f"L0.ffn[{here},0]",
        question,
        role="ffn",
        focus=here,
        shown=("L0.ffn.hidden",) if not config.gated else ("L0.ffn.gate",),
        revealed=("L0.ffn.act",),
    )  # fmt: skip


def stack(live: Live, number: int) -> Lesson:
    config, here, transformer = live.config, live.here, live.model.transformer
    total, layers = live.model.n_parameters, config.n_layers
    one = sum(parameter.numel() for parameter in transformer.get_submodule("blocks.0").parameters())
    right = total + layers * one
    question = live.asked("stack").number(
        f"This model has {total:,} parameters, {one:,} of them in each of its {layers} "
        f"block{'s' if layers > 1 else ''}. How many has one that is twice as deep?",
        right,
        [2 * total, total + one, total + 2 * layers * one, total, layers * one],
        f"{total:,} + {layers} × {one:,} = {right:,}: embeddings and head are there once, however deep the model is.",
    )
    out = live.trace.steps.output
    rows: list[tuple[Figure, ...]] = []
    for layer in range(layers):
        x, attn, ffn, after = (live.at(f"L{layer}.{name}")[here] for name in ("in", "attn", "ffn", out))
        turned = float(x @ after / max(float(np.linalg.norm(x) * np.linalg.norm(after)), 1e-30))
        rows.append((f"L{layer}", *(float(np.linalg.norm(v)) for v in (x, attn, ffn, after)), turned))
    return Lesson(
        number, "stack", TITLES["stack"],
        "Every block has the same form and weights of its own, and works on what those below it left. Lengths say how "
        "much each part wrote for this token; the cosine, how much of its direction outlasts the block.",
        f"x → block 0 → … → block {layers - 1} → " + ("final norm" if config.final_norm else "the last norm2"),
        "for block in blocks: x = block(x)",
        f"L{layers - 1}.{out}[{here},0]",
        question,
        figures=Figures(("block", "in", "attention", "ffn", "out", "cosine of in, out"), tuple(rows), layers=True),
    )  # fmt: skip


LESSONS: dict[str, Callable[[Live, int], Lesson]] = {
    "residual": residual,
    "norm": norm,
    "feed-forward": feed_forward,
    "stack": stack,
}
