"""Lessons about the rest of a block: residual, norm, feed-forward, and the stack of blocks."""

import math

import numpy as np

from tinytf.config import ENC
from tinytf.learn.lesson import SEEN, Figure, Lesson, LiveTable, bracketed, figure
from tinytf.learn.live import Live
from tinytf.steps.operations import Norm


def residual(live: Live) -> Lesson:
    here, steps = live.here, live.steps
    total = steps["mid" if live.trace.steps.has("mid", live.layer) else "out"]
    added = total.inputs[1]
    x_in, update = live.at("L0.in")[here], live.at(f"L0.{added}")[here]
    dimension = int(np.abs(update[:SEEN]).argmax())
    x, attn = float(x_in[dimension]), float(update[dimension])
    question = live.ask("residual").number(
        f"In dimension {dimension} of token {here}, {live.token(here)}, x is {figure(x)} and attention adds "
        f"{figure(attn)}. What would the sum be if attention had found nothing and added 0?",
        x,
        [
            (x + attn, "That is the sum with what attention does add."),
            (attn, "That is what attention does add, without x."),
            (0.0, "Only what is added would be 0; x stays."),
            (x - attn, "That subtracts what attention does add."),
        ],
        f"x + 0 = {figure(x)}: a part that has nothing to say leaves the token as it is. "
        f"With attention it is {figure(x + attn)}.",
    )
    parts = {"in": "x", **{name: name for name in total.inputs[1:]}, total.name: total.formula}
    rows = tuple((label, float(np.linalg.norm(live.at(f"L0.{name}")[here]))) for name, label in parts.items())
    attends = f"attention({'norm1(x)' if steps['q'].inputs == ('norm1',) else 'x'})"
    line = attends if added == "attn" else f"{added}({attends})"
    into_ffn = next(step for step in live.trace.steps.in_layer(live.layer) if step.role == "ffn").inputs[0]
    fed = f" + ffn({into_ffn}(x))"
    return live.lesson(
        "residual",
        question,
        LiveTable((f"vector of {live.token(here)}", "length"), rows),
        total=total.name,
        sum=total.formula,
        added=added,
        adds=f"{line}{fed if len(parts) > 3 else ''}",
        dimension=dimension,
    )


def norm(live: Live) -> Lesson:
    config, here, layer_norm = live.config, live.here, live.config.norm == "layernorm"
    norms = (step for step in live.trace.steps.in_layer(live.layer) if isinstance(step.operation, Norm) and step.reads)
    first = next(step for step in norms if step.axes == ("token", "d_model"))
    address, source = f"L0.{first.name}", f"L0.{first.inputs[0]}"
    x = live.at(source)[here]
    mean = float(x.mean()) if layer_norm else 0.0
    size = math.sqrt(float(((x - mean) ** 2).mean()) + config.norm_eps)
    dimension = int(np.abs(x[:SEEN] - mean).argmax())
    value, normed = float(x[dimension]), float(live.at(f"{address}[{here},{dimension}]"))
    answer = (value - mean) / size
    if layer_norm:
        moments, numerator = (
            f"mean {figure(mean)} and standard deviation {figure(size)}",
            f"({figure(value)} − {bracketed(mean)})",
        )
    else:
        moments, numerator = f"root mean square {figure(size)}", figure(value)
    learned = " and ".join(config.norm_parameters)
    makes = "make" if len(config.norm_parameters) > 1 else "makes"
    question = live.ask("norm").number(
        f"Token {here}, {live.token(here)}, has {moments}; its dimension {dimension} is {figure(value)}. "
        f"What is that after the norm{f', before its {learned}' if learned else ''}?",
        answer,
        [
            (value - size, f"That subtracts {figure(size)}, and the norm divides by it."),
            (answer / size, f"That divides by {figure(size)} twice."),
            (value * size, f"That multiplies by {figure(size)}, and the norm divides by it."),
            (answer * answer, "That is the square of the right number."),
            (value, "That is the number before the norm."),
            (-answer, "That has the wrong sign."),
        ],
        f"{numerator} / {figure(size)} = {figure(answer)}."
        + (f" The learned {learned} of that dimension {makes} it {figure(normed)}." if learned else ""),
    )
    stream = "always" if isinstance(live.steps[live.trace.steps.output].operation, Norm) else "never"
    return live.lesson(
        "norm", question, variant=config.norm, address=address, source=source, dimension=dimension, stream=stream
    )


def feed_forward(live: Live) -> Lesson:
    if live.config.at(live.layer).experts:
        return _experts(live)
    config, gated = live.config, live.config.gated
    width, hidden, matrices = config.d_model, config.d_ff, 3 if gated else 2
    biases = (matrices - 1) * hidden + width if config.ffn_bias else 0
    matrix_size = width * hidden
    answer = live.parameters(f"blocks.{live.layer}.ffn")
    slopes = answer - matrices * matrix_size - biases  # of the activation, where they are learned
    bias_note = "biases included" if biases else "no biases"
    bias_note += f", {slopes} slopes of the activation" if slopes else ""
    added = f" + {biases:,} biases" * bool(biases) + f" + {slopes} slopes" * bool(slopes)
    question = live.ask("feed-forward").number(
        f"How many parameters are in one feed-forward with d_model {width:,} and d_ff {hidden:,} "
        f"({'gate, up and down' if gated else 'W₁ and W₂'}, {bias_note})?",
        answer,
        [
            (matrix_size, f"That is one matrix, and there are {matrices}."),
            ((5 - matrices) * matrix_size, f"That is {5 - matrices} matrices, and there are {matrices}."),
            (4 * width * width, f"That is 4 × {width:,} × {width:,}, and a matrix here is {width:,} × {hidden:,}."),
            (width + hidden, "That adds the two sizes, and a matrix has their product."),
            (4 * matrix_size, f"That is 4 matrices, and there are {matrices}."),
        ],
        f"{matrices} × {width:,} × {hidden:,}{added} = {answer:,}; attention in "
        f"the same block has {live.parameters(f'blocks.{live.layer}.attention'):,}.",
    )
    act = np.abs(live.at("L0.ffn.act")[live.here])
    weights = dict(live.model.transformer.named_parameters())
    names = {"gate": "W_gate", "up": "W_up" if gated else "W₁", "down": "W_down" if gated else "W₂"}
    rows = []
    for part, label in names.items():
        for kind, row_label in (("weight", label), ("bias", f"b of {label}")):
            weight = weights.get(f"blocks.{live.config.first_of(live.layer)}.ffn.{part}.{kind}")
            if weight is not None:  # torch keeps (out, in); in n·W it is (in, out)
                rows.append((row_label, " × ".join(f"{size:,}" for size in reversed(weight.shape)), weight.numel()))
    return live.lesson(
        "feed-forward",
        question,
        LiveTable(("weights", "shape"), tuple(row[:2] for row in rows)),
        LiveTable(("weights", "shape", "parameters"), tuple(rows)),
        variant="gated" if gated else "",
        quiet=float((act < 0.01 * max(act.max(), 1e-30)).mean()),
        bias=" + b" if config.ffn_bias else "",
        gate=live.steps["ffn.gate"].formula if gated else "",
        hidden=live.steps["ffn.hidden"].formula,
        curve=f"F.{config.activation.removesuffix('_tanh')}",
        how=', approximate="tanh"' if config.activation == "gelu_tanh" else "",
    )


def _experts(live: Live) -> Lesson:
    config, here, count = live.config.at(live.layer), live.here, live.config.experts
    total, per_token = live.parameters(f"blocks.{live.layer}.ffn"), config.experts_per_token
    per_expert = live.parameters(f"blocks.{live.layer}.ffn.experts") // count
    shared_parameters = total - count * per_expert
    answer = shared_parameters + per_token * per_expert
    question = live.ask("feed-forward").number(
        f"The feed-forward of block {live.layer} has {total:,} parameters: {count} experts of {per_expert:,} each, and "
        f"{shared_parameters:,} in the router{' and the shared expert' if config.d_shared else ''}. How many of them "
        f"work on one token, which goes to {_of_experts(per_token)}?",
        answer,
        [
            (total, f"That is all {count} experts, and a token goes to {_of_experts(per_token)}."),
            (per_token * per_expert, f"That leaves out the {shared_parameters:,} that work on every token."),
            (shared_parameters + per_expert, f"That is 1 expert, and a token goes to {_of_experts(per_token)}."),
            (per_expert, "That is one expert by itself."),
            (
                shared_parameters + (per_token + 1) * per_expert,
                f"That is {per_token + 1} experts, and a token goes to {_of_experts(per_token)}.",
            ),
        ],
        f"{shared_parameters:,} + {per_token} × {per_expert:,} = {answer:,}. The other {total - answer:,} wait for "
        "tokens that are sent to them; attention in the same block has "
        f"{live.parameters(f'blocks.{live.layer}.attention'):,}.",
    )
    rows: list[tuple[str, str, int]] = []
    for step in live.trace.steps.in_layer(live.layer):
        if step.role == "ffn" and step.module:
            parameters = dict(live.model.transformer.blocks[live.layer].get_submodule(step.module).named_parameters())
            for kind, weight in parameters.items():  # torch keeps (out, in); in n·W it is (in, out)
                shape = weight.shape if kind == "bias" or weight.dim() < 2 else weight.transpose(-1, -2).shape
                label = f"b of {step.parameter}" if kind == "bias" else step.parameter
                rows.append((label, " × ".join(f"{size:,}" for size in shape), weight.numel()))
    routes = live.at(f"L0.{live.trace.steps.routes}[{here}]")
    sent = [f"{number} ({figure(float(routes[number]))})" for number in np.flatnonzero(routes)]
    shared_output = "torch.sigmoid(score(n)) * shared(n)" if config.shared_gate else "shared(n)"
    return live.lesson(
        "feed-forward",
        question,
        LiveTable(("weights", "shape"), tuple(row[:2] for row in rows)),
        LiveTable(("weights", "shape", "parameters"), tuple(rows)),
        variant="experts",
        sent=", ".join(sent),
        working=f"{per_token} of them work" if per_token > 1 else "one of them works",
        beside=", beside a shared one that works on all" if config.d_shared else "",
        routes=live.trace.steps.routes,
        plus=f" + {shared_output}" if config.d_shared else "",
    )


def _of_experts(count: int) -> str:
    return f"{count} expert{'' if count == 1 else 's'}"


_ONCE = {ENC: "the encoder, ", "": "embeddings and head"}


def stack(live: Live) -> Lesson:
    total, shared = live.model.n_parameters, live.config.layer_groups
    block_sizes = live.block_sizes
    last_size, count, in_blocks, alike = block_sizes[-1], len(block_sizes), sum(block_sizes), len(set(block_sizes)) == 1
    group_note, deeper = (
        (" of layers that share them", "with twice as many groups") if shared else ("", "twice as deep")
    )
    answer = total + in_blocks
    once = "".join(_ONCE[at] for at in live.config.stacks)
    share = f"{last_size:,} of them in each of its" if alike else f"{in_blocks:,} of them in its"
    addition = f"{count} × {last_size:,}" if alike else f"{in_blocks:,}"
    question = live.ask("stack").number(
        f"This model has {total:,} parameters, {share} {count} "
        f"{'group' if shared else 'block'}{'s' if count > 1 else ''}{group_note}. "
        f"How many parameters does a model {deeper} have?",
        answer,
        [
            (2 * total, "That doubles the embeddings too, and there is one table at any depth."),
            (total + last_size, f"That adds {last_size:,} once, and {addition} are added."),
            (total + 2 * in_blocks, f"That adds {in_blocks:,} twice."),
            (total, "That is the model as it is."),
            (in_blocks, f"That is what is added; the model has {total:,} already."),
        ],
        f"{total:,} + {addition} = {answer:,}: {once} exist once, however deep the model is.",
    )
    out = live.trace.steps.output
    rows: list[tuple[Figure, ...]] = []
    for layer in range(live.config.n_layers):
        steps = (live.trace.step(name, layer)[live.here] for name in ("in", "attn", "ffn", out))
        x, attn, ffn, x_out = (vector.detach().double().cpu().numpy() for vector in steps)
        sizes = [float(np.linalg.norm(v)) for v in (x, attn, ffn, x_out)]
        cosine = float(x @ x_out / max(sizes[0] * sizes[-1], 1e-30))
        rows.append((f"L{layer}", live.parameters(f"blocks.{layer}"), *sizes, cosine))
    return live.lesson(
        "stack",
        question,
        LiveTable(("block", "parameters", "in", "attention", "ffn", "out", "cosine"), tuple(rows), keep="spread"),
        form="the same form and " if alike else "",
        last=live.config.n_layers - 1,
        out=out,
        end="final norm" if live.config.final_norm else "the last norm2",
    )
