"""Every family against transformers: what is opened of a directory gives their numbers after every layer."""

import copy
from collections.abc import Iterator

import pytest
import torch
from architectures import encoding_of, furthest, padding
from reference import FAMILIES, Pair, last_of, last_states, pair, states_of
from torch import Tensor

import tinytf
from tinytf.generate.loop import stream
from tinytf.model.transformer import Source, Transformer
from tinytf.trace.record import record

B, LENGTH = 3, 13


@pytest.fixture(scope="module", params=FAMILIES)
def models(request) -> Iterator[Pair]:
    with torch.no_grad():
        yield pair(request.param)


def some_text(models: Pair) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(9)
    given = {"input_ids": torch.randint(3, models.ours.config.vocab_size, (B, LENGTH), generator=generator)}
    if types := models.ours.config.n_token_types or 2 * models.ours.config.segments:
        given["token_type_ids"] = torch.randint(0, types, (B, LENGTH), generator=generator)
    return given


def run_ours(model: Transformer, given: dict[str, Tensor], real: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """What the model returns, and what goes into its first block and comes out of every one."""
    states: list[Tensor] = []
    hooks = [model.streams.register_forward_hook(lambda module, args, result: states.append(result))]
    hooks += [block.register_forward_hook(lambda module, args, result: states.append(result)) for block in model.blocks]
    try:
        result = model(given["input_ids"], padding_mask=real, token_types=given.get("token_type_ids"))
    finally:
        for hook in hooks:
            hook.remove()
    states[-1] = last_states(model, states[-1])
    return result, states


@pytest.mark.share(4)
@torch.no_grad()
@pytest.mark.every
def test_every_layer_and_the_logits_are_theirs(models):
    each_layer_is_theirs(models, "none")


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_they_are_theirs_beside_padding(models, side):
    each_layer_is_theirs(models, side)


def each_layer_is_theirs(models: Pair, side: str) -> None:
    given = some_text(models)
    chunks = max(models.ours.config.at(layer).chunk for layer in range(models.ours.config.n_layers))
    if side == "left" and models.theirs.config.model_type == "recurrent_gemma":
        pytest.skip("in theirs padding is written to the state")
    if side == "left" and models.theirs.config.model_type == "deepseek_v4":
        pytest.skip("theirs begins blocks with padding, ours with the first real token")
    if side == "left" and chunks > 2:
        pytest.skip("theirs counts chunks from the first real token, ours from the first: they agree on chunks of 2")
    if side == "left" and models.ours.config.index_by_head:
        pytest.skip("theirs counts blocks from the padding: see the test of blocks")
    real = padding(side, B, LENGTH)
    mask = torch.ones(B, LENGTH, dtype=torch.long) if real is None else real.long()
    if models.ours.config.position_offset and models.ours.config.causal:  # OPT counts from the first real token
        given["position_ids"] = torch.arange(LENGTH)[None].expand(B, -1)
    expected = models.theirs(**given, attention_mask=mask, output_hidden_states=True)
    result, states = run_ours(models.ours, given, real)
    looked_at = mask.bool()
    their_states = states_of(models, expected, given["input_ids"])
    assert len(states) == models.ours.config.n_layers + 1
    for layer, theirs in zip((*models.begins, -1), their_states, strict=True):
        ours = states[layer]
        assert furthest(ours[looked_at], theirs[looked_at]) < 1e-5
    last, found = last_of(models, expected, result, looked_at)
    assert furthest(found, last) < 1e-5
    assert float(expected.hidden_states[-1].std()) > 0.3, "too small for a difference to show"


@torch.no_grad()
def test_blocks_of_keys_begin_with_the_first_token_that_is_not_padding():
    models = pair("minimax m3")
    ids, real = some_text(models)["input_ids"], padding("left", B, LENGTH)
    found = models.ours(ids, padding_mask=real)
    for row, looked_at in zip(range(B), real, strict=True):
        assert furthest(found[row, looked_at], models.theirs(ids[row, looked_at][None]).logits[0]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_every_layer_of_what_it_reads_is_theirs(models, side):
    if models.ours.encoder is None:
        pytest.skip("it has one stack")
    each_layer_is_theirs(Pair(models.theirs.get_encoder(), models.ours.encoder), side)


@torch.no_grad()
def test_sources_and_targets_of_several_lengths_give_their_numbers(models):
    """Each target reads the source of its own row."""
    if models.ours.encoder is None:
        pytest.skip("it has one stack")
    targets, sources = (some_text(models)["input_ids"][:, :length] for length in (LENGTH, 8))
    real, of_source = (padding("right", B, ids.shape[1]) for ids in (targets, sources))
    masks = {"attention_mask": of_source.long(), "decoder_attention_mask": real.long()}
    expected = models.theirs(sources, decoder_input_ids=targets, **masks, output_hidden_states=True)
    source = Source(models.ours.encoder.hidden(sources, padding_mask=of_source), of_source)
    hidden = models.ours.hidden(targets, padding_mask=real, source=source)
    assert furthest(hidden[real], expected.decoder_hidden_states[-1][real]) < 1e-5
    assert furthest(models.ours.unembed(hidden)[real], expected.logits[real]) < 1e-5


@torch.no_grad()
def test_greedy_generation_with_a_cache_gives_what_they_predict_of_the_whole_text(models):
    config = models.ours.config
    if config.head.kind != "lm" or not config.causal:
        pytest.skip("it generates nothing")
    text = some_text(models)["input_ids"][0, :6].tolist()
    found = list(stream(models.ours, text, max_tokens=12))
    for step in found:
        log_p = models.theirs(torch.tensor([text])).logits[0, -1].log_softmax(-1)
        assert step.id == int(log_p.argmax())
        assert step.log_probability == pytest.approx(float(log_p.max()), abs=2e-5)
        text.append(step.id)
    assert {step.note for step in found} == {""}


@torch.no_grad()
def test_their_fused_attention_gives_the_same(models):
    given = some_text(models)
    if not models.theirs._supports_sdpa:
        pytest.skip("theirs has no fused attention: torch's has no soft cap")
    models.theirs.set_attn_implementation("sdpa")
    try:
        expected = models.theirs(**given)
    finally:
        models.theirs.set_attn_implementation("eager")
    last, found = last_of(models, expected, run_ours(models.ours, given, None)[0])
    assert furthest(found, last) < 1e-4


@torch.no_grad()
def test_in_bfloat16_the_difference_is_one_of_rounding(models):
    """bfloat16 keeps 8 bits, a relative step of 2⁻⁸, and both round after every operation, each in its own order.

    So neither is the truth: ours may be no further from the float32 numbers, over all of them, than twice what theirs
    is. Where rounding sends a token to another expert, its numbers are others altogether: of experts most of the tokens
    are compared.
    """
    given, family = some_text(models), models
    exact = run_ours(family.ours, given, None)[0]
    theirs = copy.deepcopy(family.theirs).to(torch.bfloat16)(**given)
    found = run_ours(copy.deepcopy(family.ours).to(torch.bfloat16), given, None)[0].float()
    last, exact = last_of(family, theirs, exact)
    _, found = last_of(family, theirs, found)
    last = last.float()
    if family.ours.config.experts:
        kept = (last - exact).abs().amax(-1).argsort()[: len(exact) // 2]
        kept = kept[(found[kept] - exact[kept]).abs().amax(-1).argsort()[: len(kept) // 2]]
        exact, last, found = exact[kept], last[kept], found[kept]
    rounding = furthest(last, exact)
    assert 2**-10 < rounding < 0.2
    assert float((found - exact).norm()) < 2 * float((last - exact).norm())


def test_theirs_in_memory_opens_as_the_directory_that_it_writes(models):
    opened = tinytf.load(models.theirs)
    assert opened.config == models.ours.config
    found, expected = opened.transformer.state_dict(), models.ours.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert with a pooler", "roberta with a pooler"])
def test_the_pooled_vector_is_theirs(family):
    models = pair(family)
    given = some_text(models)
    hidden = models.ours.hidden(given["input_ids"], token_types=given["token_type_ids"])
    assert furthest(models.ours.pool(hidden), models.theirs(**given).pooler_output) < 1e-5


def test_token_types_left_out_are_type_0():
    models = pair("bert with a masked head")
    ids = some_text(models)["input_ids"]
    assert torch.equal(models.ours(ids), models.ours(ids, token_types=torch.zeros_like(ids)))
    assert not torch.equal(models.ours(ids), models.ours(ids, token_types=torch.ones_like(ids)))


@torch.no_grad()
def test_parameters_are_as_many(models):
    theirs = {
        name: parameter.numel() for name, parameter in models.theirs.named_parameters() if parameter.requires_grad
    }
    theirs |= {name: one.numel() for name, one in models.theirs.named_buffers() if name == "final_logits_bias"}
    left = ("contact_head", ".visual_", "entity_", "w2e_", "e2w_", "e2e_", ".mask_emb")
    # of ESM, VisualBERT, LUKE and XLNet
    left += ("correct_output_scale",) * (not models.ours.config.stream_gain)  # Gemma 3n keeps it without use
    theirs = {name: count for name, count in theirs.items() if not any(part in f".{name}" for part in left)}
    if not models.ours.config.tied_head:  # transformers keeps one beside the untied decoder's, and never reads it
        beside = "lm_head" if models.theirs.config.model_type == "bert-generation" else "cls.predictions"
        theirs.pop(f"{beside}.bias", None)
    config = models.ours.config
    unread = 2 * config.padding_rows * config.d_model
    if config.identity_experts:  # which have matrices in theirs
        routed = [layer for layer in range(config.n_layers) if config.at(layer).experts]
        unread = len(routed) * config.identity_experts * 2 * config.d_expert * config.d_model
    assert sum(p.numel() for p in models.ours.parameters()) == sum(theirs.values()) - unread


def of_chosen(trace, layer):
    """The weights of the heads that are chosen for each query, those of its best expert first, as JetMoE has them."""
    weights, config = trace[f"L{layer}.weights"], trace.config
    best = trace[f"L{layer}.attn.router"].topk(config.experts_per_token).indices.T  # (k, Q)
    by_expert = weights.unflatten(0, (-1, config.experts))  # (G, E, Q, K)
    return torch.cat([by_expert[:, experts, torch.arange(len(experts))] for experts in best])


def as_theirs(models, trace, layer):
    """Attention weights as theirs gives them: of blocks after those of tokens, without a sink's share in Granite."""
    weights = trace[f"L{layer}.weights"]
    if size := trace.config.at(layer).block_size:
        return torch.cat((weights, trace[f"L{layer}.block.weights"][..., size - 1 :: size]), dim=-1)
    without_sink = models.theirs.config.model_type.endswith("_swa")
    return weights / weights.sum(-1, keepdim=True) if without_sink else weights


@torch.no_grad()
def test_a_trace_holds_their_hidden_states_and_attentions(models):
    ids = some_text(models)["input_ids"][:1]
    doubled = getattr(models.theirs.config, "alibi", False)  # Falcon adds ALiBi twice where it gives its weights
    expected = models.theirs(ids, output_hidden_states=True, output_attentions=not doubled)
    trace = record(models.ours, encoding_of(ids[0].tolist()))
    states, their_attentions = states_of(models, expected, ids), getattr(expected, "attentions", None) or ()
    if models.theirs.config.model_type == "minimax":  # it gives the states of lightning attention among them
        their_attentions = tuple(their_attentions[layer] for layer in trace.steps.attention_layers)
    if models.theirs.config.model_type == "squeezebert":  # it gives the scores
        their_attentions = tuple(scores.softmax(-1) for scores in their_attentions)
    attentions = dict(zip(trace.steps.attention_layers, their_attentions, strict=not doubled))
    for layer, state in zip(models.begins, states, strict=False):
        assert furthest(trace[f"L{layer}.in"], state[0]) < 1e-5
        if layer:
            assert furthest(trace[f"L{layer - 1}.out"], state[0]) < 1e-5
    if models.theirs.config.model_type == "jetmoe":
        for layer, theirs in attentions.items():
            assert furthest(of_chosen(trace, layer), theirs[0]) < 2e-5
        return
    for layer in attentions:
        # a softmax multiplies the rounding of its scores
        assert furthest(as_theirs(models, trace, layer), attentions[layer][0]) < 2e-5
    if trace.source is not None:
        local = models.theirs.config.model_type == "longt5"  # it gives those of its encoder in blocks
        theirs_of_source = (*(() if local else expected.encoder_attentions), *expected.cross_attentions)
        ours = [trace[f"enc.L{layer}.weights"] for layer in range(0 if local else trace.source.config.n_layers)]
        ours += [trace[f"dec.L{layer}.cross.weights"] for layer in range(trace.config.n_layers)]
        for found, theirs in zip(ours, theirs_of_source, strict=True):
            assert furthest(found, theirs[0]) < 2e-5
    if len({theirs.shape for theirs in their_attentions}) == 1 and models.theirs.config.model_type != "deepseek_v4":
        every = torch.cat(their_attentions)
        found = trace["L*.weights"].view_as(every)
        without_sink = models.theirs.config.model_type.endswith("_swa")
        assert furthest(found / found.sum(-1, keepdim=True) if without_sink else found, every) < 2e-5
    assert furthest(last_states(models.ours, trace.last_output), states[-1][0]) < 1e-5
    if models.ours.head is not None:
        last, found = last_of(models, expected, trace["logits"][None])
        assert furthest(found, last) < 1e-5
        if trace.steps.chooses:
            assert furthest(last_of(models, expected, trace["probs"][None])[1], last.softmax(-1)) < 1e-5
    elif models.ours.pooler is not None:
        assert furthest(trace["pooled"], expected.pooler_output[0]) < 1e-5


@torch.no_grad()
def test_a_trace_holds_what_their_parts_compute():
    """Inside the layers, through hooks on transformers' own modules."""
    models = pair("llama")
    theirs, seen = models.theirs.model.layers, {}

    def keep(module, name, of_input=False):
        def hook(module, args, result):
            seen[name] = args[0] if of_input else result

        module.register_forward_hook(hook)

    for n, layer in enumerate(theirs):
        keep(layer.input_layernorm, f"L{n}.norm1")
        keep(layer.self_attn.o_proj, f"L{n}.attn")
        keep(layer.self_attn.o_proj, f"L{n}.concat", of_input=True)
        keep(layer.post_attention_layernorm, f"L{n}.mid", of_input=True)
        keep(layer.post_attention_layernorm, f"L{n}.norm2")
        keep(layer.mlp.gate_proj, f"L{n}.ffn.gate")
        keep(layer.mlp.up_proj, f"L{n}.ffn.hidden")
        keep(layer.mlp.down_proj, f"L{n}.ffn.act", of_input=True)
        keep(layer.mlp, f"L{n}.ffn")
        keep(layer, f"L{n}.out")
    ids = some_text(models)["input_ids"][:1]
    models.theirs(ids)
    trace = record(models.ours, encoding_of(ids[0].tolist()))
    assert len(seen) == 10 * len(theirs)
    for address, expected in seen.items():
        assert furthest(trace[address], expected[0]) < 1e-5, address
