"""Modules that people write, with one fault each, and sound ones: what ``check`` says of them."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tinytf.check.checked import Checked, check
from tinytf.check.reference import reference
from tinytf.loading import Model

_BY_HAND = ("flash: bool = True", "flash: bool = False")
FILES = Path(__file__).parent / "modules"
_SMALL = {"n_layers": 2, "d_model": 48, "n_heads": 4, "vocab_size": 2048, "context": 32}
SOURCES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "nano": ("GPT", "gpt2-tiny", {}),
    "lecture": ("LanguageModel", "gpt2", {"activation": "relu", "qkv_bias": False, "tied_head": False, "head_bias": True}),
    "llama": ("Llama", "llama-tiny", {"n_kv_heads": 2}),
    "alibi": ("Decoder", "gpt2", {"positions": "alibi", "embed_norm": True}),
    "tensors": ("Model", "gpt2", {"tied_head": False}),
    "gemma": ("Gemma", "llama-tiny", {
        "n_kv_heads": 2, "qk_norm": True, "embed_scale": 48**0.5, "activation": "gelu_tanh", "attention_cap": 0.5,
        "logit_cap": 0.3, "window": 4, "tied_head": True, "norm_eps": 1e-6,
    }),
    "neox": ("NeoX", "gpt2", {
        "positions": "rotary", "rope_width": 6, "residual": "parallel", "activation": "gelu", "tied_head": False,
    }),
}  # fmt: skip
"""The module of each source, with the preset that it is like and what of it is different."""


@dataclass(frozen=True)
class Fault:
    """One fault in a source: ``right`` text that is replaced by ``wrong``, and what is to be said of it.

    ``first`` is the step that is wrong first (or several that a fused function hides), ``line`` a part of the line that
    computes it; empty for a step that is left out. ``cause`` is a regular expression.
    """

    source: str
    right: str
    wrong: str
    first: str
    line: str
    cause: str
    beside: tuple[str, str] = ("", "")


@cache
def like(source: str) -> Model:
    """The reference of a source: random weights."""
    _, preset, changes = SOURCES[source]
    return reference(preset, _SMALL | changes)


def _alike(source: str, **edits: tuple[str, str]) -> dict[str, tuple[str, tuple[str, str]]]:
    return {f"{source}: {name.replace('_', ' ')}": (source, edit) for name, edit in edits.items()}


SOUND: dict[str, tuple[str, tuple[str, str]]] = {
    **{f"{source}: as it is": (source, ("", "")) for source in SOURCES},
    **_alike(
        "nano",
        by_hand=_BY_HAND,
        a_mask_of_booleans=("attn_mask=None, is_causal=True", "attn_mask=self.bias[0, 0, :T, :T].bool()"),
        a_mask_of_large_numbers=("attn_mask=None, is_causal=True", "attn_mask=(1 - self.bias[0, 0, :T, :T]) * -1e9"),
        checkpointed=("x = block(x)", "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"),
        float64=("y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)",
                 "y = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True).float()"),
        the_branch_first=("x = x + self.mlp(self.ln_2(x))", "x = self.mlp(self.ln_2(x)) + x"),
        in_place=("x = x + self.mlp(self.ln_2(x))", "x.add_(self.mlp(self.ln_2(x)))"),
        heads_flattened=("y.transpose(1, 2).contiguous().view(B, T, C)", "y.transpose(1, 2).flatten(2)"),
        tokens_first=("for block in self.transformer.h:\n            x = block(x)",
                      "x = x.transpose(0, 1)\n        for block in self.transformer.h:\n            x = block(x.transpose(0, 1)).transpose(0, 1)\n        x = x.transpose(0, 1)"),
    ),
    **_alike(
        "lecture",
        queries_divided=("q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5", "(q * k.shape[-1] ** -0.5) @ k.transpose(-2, -1)"),
        clamped=("nn.ReLU()", "nn.Hardtanh(0.0, 1e9)"),
        values_first=("k = self.key(x)\n", "v = self.value(x)\n        k = self.key(x)\n"),
    ),
    **_alike(
        "llama",
        positions_from_one=("torch.outer(torch.arange(length)", "torch.outer(torch.arange(1, length + 1)"),
        values_times_four=("y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                           "y = F.scaled_dot_product_attention(q, k, 4 * v, is_causal=True) / 4"),
        queries_doubled=("y = F.scaled_dot_product_attention(q, k, v,", "y = F.scaled_dot_product_attention(2 * q, k / 2, v,"),
        up_doubled=("* self.up_proj(x)\n        return self.down_proj(h)", "* (2 * self.up_proj(x))\n        return self.down_proj(h) / 2"),
        norm_of_torch=("return norm * self.weight", "return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)"),
        sigmoid=("F.silu(self.gate_proj(x))", "(g := self.gate_proj(x)) * torch.sigmoid(g)"),
    ),
    **_alike(
        "alibi",
        bias_of_keys=("torch.arange(max_len)[None, :] - torch.arange(max_len)[:, None]\n        bias = get_slopes(n_heads)[:, None, None] * distance",
                      "torch.arange(max_len)[None, :] - torch.arange(max_len)[:, None]\n        bias = get_slopes(n_heads)[:, None, None] * torch.arange(max_len).expand(max_len, -1)"),
        baddbmm=("torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(c // self.h)",
                 "torch.einsum('bhid,bhjd->bhij', q / math.sqrt(c // self.h), k)"),
    ),
    **_alike(
        "tensors",
        softmax_by_hand=("pattern = scores.softmax(-1)", "pattern = (scores - scores.logsumexp(-1, keepdim=True)).exp()"),
        variance_of_squares=("((x - mean) ** 2).mean(-1, keepdim=True)", "(x * x).mean(-1, keepdim=True) - mean**2"),
        transposed_maps=("pre = x @ self.W_in + self.b_in", "pre = torch.addmm(self.b_in, x[0], self.W_in)[None] if len(x) == 1 else x @ self.W_in + self.b_in"),
    ),
    **_alike(
        "gemma",
        norm_in_float64=("return F.rms_norm(x, (x.shape[-1],), self.scale, self.eps)",
                         "return F.rms_norm(x.double(), (x.shape[-1],), self.scale.double(), self.eps).float()"),
        a_tensor_for_the_scale=("self.embedder.embedding_dim**0.5", "torch.tensor(self.embedder.embedding_dim).sqrt()"),
        masked_fill=("torch.where(seen, logits, -2.3819763e38)", "logits.masked_fill(~seen, float('-inf'))"),
    ),
    **_alike(
        "neox",
        interleaved=("left, right = rotated.chunk(2, dim=-1)", "left, right = rotated[..., 0::2], rotated[..., 1::2]"),
        summed_first=("return x + attended + fed", "return x + (attended + fed)"),
    ),
}  # fmt: skip
"""Sound modules, the unusual ones among them: a source, and what is written otherwise in it."""


def said(source: str, *edits: tuple[str, str]) -> Checked:
    """What a check says of a source in which some text is replaced."""
    text = (FILES / f"{source}.py").read_text("utf-8")
    for right, wrong in (edit for edit in edits if any(edit)):
        assert right in text, f"{source} has no {right!r}"
        text = text.replace(right, wrong)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{source}.py"
        path.write_text(text, "utf-8")
        return check(like(source), f"{path}:{SOURCES[source][0]}")


def _of(source: str, **faults: Any) -> dict[str, Fault]:
    return {f"{source}: {name.replace('_', ' ')}": Fault(source, *fault) for name, fault in faults.items()}


BROKEN: dict[str, Fault] = {
    **_of(
        "nano",
        no_mask=("is_causal=True", "is_causal=False", "L0.masked L0.head_out", "y = F.scaled", "there is no mask"),
        another_scale=("is_causal=True", "is_causal=True, scale=0.5", "L0.scaled L0.head_out", "y = F.scaled",
                       "by 2,"),
        not_divided=("is_causal=True", "is_causal=True, scale=1.0", "L0.scaled L0.head_out", "y = F.scaled",
                     "not divided"),
        a_window=("attn_mask=None, is_causal=True", "attn_mask=torch.ones(T, T).tril().triu(-2).bool()",
                  "L0.masked L0.head_out", "y = F.scaled", "window of 3 tokens"),
        mask_of_ones=("attn_mask=None, is_causal=True", "attn_mask=torch.ones(T, T).tril()",
                      "L0.masked L0.head_out", "y = F.scaled", "added as 1 and 0"),
        q_k_v_in_another_order=("q, k, v = self.c_attn", "k, q, v = self.c_attn", "L0.q L0.k L0.scores L0.head_out",
                                "", "order k, q, v|exchanged"),
        not_transposed_back=("y = y.transpose(1, 2).contiguous().view(B, T, C)", "y = y.contiguous().view(B, T, C)",
                             "L0.concat", "y = y.contiguous", "without a transpose back"),
        heads_not_transposed=("v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
                              "v = v.reshape(B, self.n_head, T, C // self.n_head)", "L0.v L0.head_out", "v = v.reshape",
                              "view.*without a transpose"),
        exact_gelu=('approximate="tanh"', "", "L0.ffn.act", "x = self.gelu(x)", r"GELU\(erf\)"),
        post_norm=("x = x + self.attn(self.ln_1(x))", "x = self.ln_1(x + self.attn(x))", "L0.norm1", "",
                   "norms? comes? after|norms after each sum", ("x = x + self.mlp(self.ln_2(x))", "x = self.ln_2(x + self.mlp(x))")),
        no_residual=("x = x + self.mlp(self.ln_2(x))", "x = self.mlp(self.ln_2(x))", "L0.out", "x = self.mlp|self.c_proj|self.dropout",
                     "residual is missing"),
        scaled_residual=("x = x + self.mlp(self.ln_2(x))", "x = 0.707 * x + self.mlp(self.ln_2(x))", "L0.out",
                         "x = 0.707", "0.707"),
        scaled_stream=("x = x + self.mlp(self.ln_2(x))", "x = (x + self.mlp(self.ln_2(x))) * 0.5", "L0.out L1.in", "x = (x +",
                       "0.5"),
        parallel=("x = x + self.attn(self.ln_1(x))\n        x = x + self.mlp(self.ln_2(x))",
                  "x = x + self.attn(self.ln_1(x)) + self.mlp(self.ln_2(x))", "L0.norm2", "self.ln_2",
                  "block's input|parallel"),
        positions_from_one=("torch.arange(0, idx.shape[1], ", "torch.arange(1, idx.shape[1] + 1, ", "embed.positions",
                            "pos_emb = ", "positions start at 1"),
        positions_twice=("tok_emb + pos_emb", "tok_emb + 2 * pos_emb", "embed.sum embed.out", "2 * pos_emb|drop",
                         "positions are added twice"),
        no_final_norm=("x = self.transformer.ln_f(x)", "pass", "final.norm", "", "norm is left out"),
        logits_scaled=("logits = self.lm_head(x)", "logits = self.lm_head(x) / 0.8", "logits", "logits = self.lm_head|return logits",
                       "1.25"),
        eps=("nn.LayerNorm(config.n_embd)", "nn.LayerNorm(config.n_embd, eps=1e-3)", "L0.norm1", "self.ln_1",
             "(ε|eps).*0.001"),
        dropout_left_on=("return self.dropout(x)", "return F.dropout(x, 0.2)", "L0.ffn L0.out", "return F.dropout", ""),
        softcap=("att = att.masked", "att = 0.02 * torch.tanh(att / 0.02)\n            att = att.masked", "L0.scaled L0.masked",
                 "att = 0.02", "cap", _BY_HAND),
        sink=("att = F.softmax(att, dim=-1)", "att = att.exp() / (1 + att.exp().sum(-1, keepdim=True))", "L0.weights",
              "att = att.exp()", "score of 0", _BY_HAND),
        mask_of_minus_ten=('float("-inf")', "-10.0", "L0.masked", "att = att.masked_fill", "-10|not −∞", _BY_HAND),
    ),
    **_of(
        "lecture",
        divided_by_the_model=("k.shape[-1] ** -0.5", "C**-0.5", "L0.scaled", "wei = q @ k", "√d_model"),
        multiplied=("k.shape[-1] ** -0.5", "k.shape[-1] ** 0.5", "L0.scaled", "wei = q @ k", "multiplied by √d_head"),
        softmax_over_queries=("F.softmax(wei, dim=-1)", "F.softmax(wei, dim=1)", "L0.weights", "wei = F.softmax",
                              "over the queries"),
        masked_after=("wei = F.softmax(wei, dim=-1)", "wei = F.softmax(q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5, dim=-1) * self.tril[:T, :T]",
                      "L0.masked L0.weights", "wei = F.softmax", "masked after the softmax"),
        upside_down=("self.tril[:T, :T] == 0", "self.tril[:T, :T] == 1", "L0.masked", "wei = wei.masked_fill",
                     "upside down"),
        weights_with_keys=("v = self.value(x)", "v = self.key(x)", "L0.v", "v = self.key", "k|K"),
        gelu_for_relu=("nn.ReLU()", "nn.GELU()", "L0.ffn.act", "return self.net(x)", r"GELU\(erf\)"),
        leaky=("nn.ReLU()", "nn.LeakyReLU(0.01)", "L0.ffn.act", "return self.net(x)", "(?i)leaky"),
        softplus=("nn.ReLU()", "nn.Softplus()", "L0.ffn.act", "return self.net(x)", "(?i)softplus"),
        the_first_norm_twice=("self.ffwd(self.ln2(x))", "self.ffwd(self.ln1(x))", "L0.norm2", "self.ln1(x)",
                              "first norm"),
        nothing_normed=("self.sa(self.ln1(x))", "self.sa(x)", "L0.norm1", "", "norm is left out"),
        no_bias_of_the_head=("nn.Linear(n_embd, vocab_size)", "nn.Linear(n_embd, vocab_size, bias=False)", "logits",
                             "logits = self.lm_head", "bias is left out"),
        heads_backwards=("for h in self.heads], dim=-1", "for h in reversed(self.heads)], dim=-1", "L0.concat",
                         "out = torch.cat", "heads in another order"),
        attention_twice=("x = x + self.sa(self.ln1(x))", "x = x + 2 * self.sa(self.ln1(x))", "L0.mid L0.attn", "x = x + 2",
                         "added twice"),
        one_layer_twice=("x = self.blocks(x)", "x = self.blocks[0](self.blocks[0](x))", "L1.norm1", "", "never read|layer 0"),
        probabilities=("return logits, loss", "return logits.softmax(-1), loss", "logits", "return logits.softmax", "probabilities"),
        ids_shifted=("self.token_embedding_table(idx)", "self.token_embedding_table(idx + 1)", "embed.tokens",
                     "tok_emb = ", "next id"),
        positions_backwards=("torch.arange(T, device=idx.device)", "torch.arange(T - 1, -1, -1)", "embed.positions",
                             "pos_emb = ", "backwards|reverse"),
    ),
    **_of(
        "llama",
        another_base=("1.0 / (base **", "1.0 / (500000.0 **", "L0.q_rot", "q = q * cos", "base.*500,000"),
        a_base_of_ones_own=("1.0 / (base **", "1.0 / (12345.6 **", "L0.q_rot", "q = q * cos", "base.*12345.6"),
        positions_halved=("torch.outer(torch.arange(length)", "torch.outer(0.5 * torch.arange(length)", "L0.q_rot",
                          "q = q * cos", "divided by 2|2 instead of|factor"),
        no_minus=("torch.cat((-b, a)", "torch.cat((b, a)", "L0.q_rot", "q = q * cos", "no minus"),
        other_way=("torch.cat((-b, a)", "torch.cat((b, -a)", "L0.q_rot", "q = q * cos", "other way"),
        keys_alone=("q = q * cos + rotate_half(q) * sin", "pass", "L0.q_rot", "", "(nothing|not) .*rotated"),
        values_too=("y = F.scaled", "v = v * cos + rotate_half(v) * sin\n        y = F.scaled", "L0.head_out",
                    "y = F.scaled", "values are rotated"),
        groups_in_turns=("x[:, :, None].expand(B, H, n, T, D).reshape", "x[:, None].expand(B, n, H, T, D).reshape",
                         "L0.head_out L0.scores", "y = F.scaled", "in turns"),
        one_key_head=("k = repeat_kv(k, self.n_heads // self.n_kv_heads)", "k = k[:, :1].expand(-1, self.n_heads, -1, -1)",
                      "L0.head_out L0.scores", "y = F.scaled", "first key head|key head 0"),
        divided_by_the_model=("is_causal=True", "is_causal=True, scale=x.shape[-1] ** -0.5", "L0.scaled L0.head_out",
                              "y = F.scaled", "√d_model"),
        layer_norm=("x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
                    "(x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + self.eps)",
                    "L0.norm1", "norm = (x - |return norm", "mean is subtracted"),
        eps_outside=("torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
                     "1 / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)",
                     "L0.norm1", "norm = |return norm", "added to σ"),
        no_gain=("return norm * self.weight", "return norm", "L0.norm1", "norm = x", "gain is left out"),
        gain_of_one_more=("return norm * self.weight", "return norm * (1 + self.weight)", "L0.norm1", "return norm",
                          "1 \\+ "),
        l1_norm=("torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)", "1 / (x.abs().mean(-1, keepdim=True) + self.eps)",
                 "L0.norm1", "norm = |return norm", ""),
        activation_on_up=("F.silu(self.gate_proj(x)) * self.up_proj(x)", "self.gate_proj(x) * F.silu(self.up_proj(x))",
                          "L0.ffn.act", "h = ", "exchanged"),
        up_forgotten=("F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.gate_proj(x))", "L0.ffn.act", "h = ",
                      "up is not multiplied"),
        gate_added=("F.silu(self.gate_proj(x)) * self.up_proj(x)", "F.silu(self.gate_proj(x)) + self.up_proj(x)",
                    "L0.ffn.act", "h = ", "added, not multiplied"),
        swiglu_with_beta=("F.silu(self.gate_proj(x))", "(g := self.gate_proj(x)) * torch.sigmoid(1.5 * g)", "L0.ffn.act",
                          "h = ", "1.5"),
        tied_head=('self.lm_head(x)}', 'F.linear(x, self.embed_tokens.weight)}', "logits", 'return {"logits"', "tied"),
        the_second_norm_of_attention=("self.self_attn(self.input_layernorm(x))",
                                      "self.self_attn(self.post_attention_layernorm(x))", "L0.norm1", "return norm",
                                      "norm2"),
        embeddings_scaled=("x = self.embed_tokens(input_ids)", "x = self.embed_tokens(input_ids) * 48**0.5",
                           "embed.tokens embed.out L0.in", "x = self.embed_tokens", "√d_model"),
        bidirectional_window=("is_causal=True", "attn_mask=torch.ones(T, T).tril().triu(-3).bool()",
                              "L0.masked L0.head_out", "y = F.scaled", "window of 4 tokens"),
    ),
    **_of(
        "alibi",
        no_bias=("scores = scores + self.alibi[:, :t, :t]",
                 "scores = scores + self.alibi[:, :t, :t].isinf().float().log1p().masked_fill(self.alibi[:, :t, :t].isinf(), float('-inf'))",
                 "L0.biased L0.masked", "scores = ", "ALiBi left out"),
        the_other_way=("get_slopes(n_heads)[:, None, None] *", "-get_slopes(n_heads)[:, None, None] *",
                       "L0.biased L0.masked", "scores = scores + ", "other (way|sign)|scale.*-1"),
        twice_as_steep=("get_slopes(n_heads)[:, None, None] *", "2 * get_slopes(n_heads)[:, None, None] *",
                        "L0.biased L0.masked", "scores = scores + ", "2"),
        one_slope=("start * start**i for", "start for", "L0.biased L0.masked", "scores = scores + ", "0.25, 0.25"),
        not_divided=(" / math.sqrt(c // self.h)", "", "L0.scaled", "scores = torch.matmul", "not divided"),
        bias_divided_too=("scores = scores + self.alibi[:, :t, :t]", "scores = scores + self.alibi[:, :t, :t] / math.sqrt(c // self.h)",
                          "L0.biased L0.masked", "scores = scores + ", "0.288|√12|√d_head"),
        no_norm_of_embeddings=("self.emb_norm(self.emb(tokens))", "self.emb(tokens)", "embed.norm", "", "left out"),
        keys_for_values=("mixed = torch.matmul(probs, v)", "mixed = torch.matmul(probs, k)", "L0.head_out", "mixed = ",
                         "with keys"),
        scores_transposed=("torch.matmul(q, k.transpose(-1, -2))", "torch.matmul(k, q.transpose(-1, -2))", "L0.scores L0.scaled",
                           "scores = torch.matmul", "exchanged"),
        squared_relu=("h = self.act(h)", "h = torch.relu(h).square()", "L0.ffn.act", "h = torch.relu", "ReLU"),
    ),
    **_of(
        "tensors",
        mask_too_late=("diagonal=1", "diagonal=2", "L0.masked", "scores = scores.masked_fill", "sees the next"),
        variance_unbiased=("((x - mean) ** 2).mean(-1, keepdim=True)", "x.var(-1, keepdim=True)", "L0.norm1",
                           "return (x - mean)", "n − 1"),
        mean_kept=("return (x - mean) /", "return x /", "L0.norm1", "return x /", "does not subtract the mean"),
        no_bias_of_queries=("self.W_Q) + self.b_Q", "self.W_Q)", "L0.q", "q = torch.einsum", "bias is left out"),
        heads_mixed=("bqhd,hdc->bqc\", z,", "bqhd,hdc->bqc\", z.roll(1, 2),", "L0.attn L0.concat", "return torch.einsum",
                     "heads"),
        pattern_transposed=("bhqk,bkhd->bqhd\", pattern,", "bhqk,bkhd->bqhd\", pattern.mT,", "L0.head_out",
                            "z = torch.einsum", "transposed before"),
        gelu_of_another_constant=("0.044715", "0.44715", "L0.ffn.act", "return 0.5", ""),
        quick_gelu=("post = gelu(pre)", "post = pre * torch.sigmoid(1.702 * pre)", "L0.ffn.act", "post = ", "1.702"),
        out_bias_twice=("post @ self.W_out + self.b_out", "post @ self.W_out + 2 * self.b_out", "L0.ffn", "return post",
                        "bias too many|bias is added twice"),
        mlp_reads_the_input=("self.mlp(layer_norm(mid,", "self.mlp(layer_norm(x,", "L0.norm2", "",
                             "block's input"),
        positions_forgotten=("self.W_E[tokens] + self.W_pos[: tokens.shape[1]]", "self.W_E[tokens]", "embed.sum embed.out", "",
                             "not added"),
        every_token_at_zero=("self.W_pos[: tokens.shape[1]]", "self.W_pos[:1]", "embed.positions", "x = self.W_E",
                             "position 0"),
        q_with_q=("bqhd,bkhd->bhqk\", q, k)", "bqhd,bkhd->bhqk\", q, q)", "L0.scores L0.scaled", "scores = torch.einsum",
                  "q·qᵀ"),
        unembedded_before_the_norm=("            x = block(x)\n        x = layer_norm", "            x = block(x)\n        y = layer_norm", "logits final.norm", "",
                                    "passed over|left out"),
    ),
    **_of(
        "gemma",
        not_scaled=(" * self.embedder.embedding_dim**0.5", "", "embed.tokens", "x = self.embedder", "not multiplied"),
        no_cap=("logits = torch.tanh(logits / self.cap) * self.cap", "pass", "L0.capped L0.masked", "", "cap.*0|no.*cap"),
        another_cap=("window=4, cap=0.5", "window=4, cap=0.25", "L0.capped", "logits = torch.tanh", "cap.*0.25"),
        a_window_one_less=("window=4", "window=3", "L0.masked", "logits = torch.where", "window of 3"),
        no_window=("window=4", "window=99", "L0.masked", "logits = torch.where", "window|every key"),
        window_one_more=("> pos[:, None] - self.window", ">= pos[:, None] - self.window", "L0.masked", "logits = torch.where",
                         "window of 5"),
        logits_not_capped=("return self.last * torch.tanh(logits / self.last)", "return logits", "logits head.logits", "logits = F.linear",
                           "cap"),
        norm_after_rope=("q, k = self.q_norm(q), self.k_norm(k)\n        q, k = self.rope(q), self.rope(k)",
                         "q, k = self.rope(q), self.rope(k)\n        q, k = self.q_norm(q), self.k_norm(k)",
                         "L0.q_norm L0.q_rot", "", "norm.*(after|last)|last"),
        keys_not_normed=("self.q_norm(q), self.k_norm(k)", "self.q_norm(q), k", "L0.k_norm", "", "left out"),
        gain_of_keys_for_queries=("self.q_norm(q), self.k_norm(k)", "self.k_norm(q), self.k_norm(k)", "L0.q_norm",
                                  "return F.rms_norm", "k_norm"),
        silu=('F.gelu(gate, approximate="tanh")', "F.silu(gate)", "L0.ffn.act", "act = F.silu", "SiLU"),
        divided_by_another=("d**-0.5", "16**-0.5", "L0.scaled L0.scores L0.q_rot", "q = q.view|logits = torch.einsum", "divided by 4"),
        eps=("eps=1e-6", "eps=1e-4", "L0.norm1", "return F.rms_norm", "(eps|ε).*0.0001"),
    ),
    **_of(
        "neox",
        sequential=("self.post_attention_layernorm(x))", "self.post_attention_layernorm(x + attended))", "L0.norm2", "",
                    "sequential|after attention"),
        all_rotated=("rotary=6", "rotary=12", "L0.q_rot", "return torch.cat", "d_head dimensions of a head instead of 6"),
        fewer_rotated=("rotary=6", "rotary=4", "L0.q_rot", "return torch.cat", "4 (dimensions of a head )?instead of 6|width"),
        one_norm=("self.mlp(self.post_attention_layernorm(x))", "self.mlp(self.input_layernorm(x))", "L0.norm2", "",
                  "first norm"),
        not_added=("return x + attended + fed", "return x + fed", "L0.out", "return x + fed", "attn not added|attn"),
        frequencies_of_the_head=("/ width)\n    angles", "/ x.shape[-1])\n    angles", "L0.q_rot", "return torch.cat",
                                 "d_head|base of 100 "),
        tanh=("F.gelu(self.dense_h_to_4h(x))", "F.gelu(self.dense_h_to_4h(x), approximate='tanh')", "L0.ffn.act", "hidden = ",
              "tanh"),
        residual_of_half=("return x + attended + fed", "return x + 0.5 * attended + fed", "L0.out L0.attn", "return x + 0.5",
                          "0.5"),
    ),
}  # fmt: skip


def words_of(found: Checked) -> str:
    """Why, as the verdict says it; empty where it names no cause."""
    unread = [trouble.what for trouble in found.troubles if trouble.what.startswith("never read")]
    return "; ".join([mistake.mistake for mistake in found.mistakes] or unread)


def verdict(fault: Fault, found: Checked) -> tuple[bool, bool, str]:
    """Whether the first step and its line are right, and whether the cause is right, wrong, or not named."""
    wrong, words = found.first_wrong, words_of(found)
    step = wrong is not None and wrong.step in fault.first.split()
    text = "" if wrong is None or wrong.line is None else wrong.line.text
    line = any(part in text for part in fault.line.split("|"))
    only = len(found.mistakes) < 2 and (not found.mistakes or not found.unexplained or found.not_finite)
    alone = only and bool(re.search(fault.cause, words))
    return step, line, ("right" if fault.cause and alone else "wrong") if words else "none"


def accused(found: Checked) -> bool:
    """Whether a sound module is said to be wrong."""
    return not found.holds


def contradictions(found: Checked) -> list[str]:
    """The mistakes by which a position would depend on later ones, in a module of which none does."""
    apart = any(one.name == "padding" and one.difference is not None and one.holds for one in found.invariances)
    return [one.mistake for one in found.mistakes if apart and _OF_THE_FUTURE.search(one.mistake)]


_OF_THE_FUTURE = re.compile("future|sees the next|upside down|no mask|masked after")
