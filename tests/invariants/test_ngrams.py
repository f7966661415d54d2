"""N-gram embeddings and choices of blocks, against loops over tokens."""

import torch
from architectures import config_of, encoding_of, lively

from tinytf.parts.ngrams import firsts_of, multipliers_of, sizes_of
from tinytf.trace.record import record

KIND = "qwen4-exp, gated streams, n-grams, and keys that an indexer chooses in blocks"
IDS = [5, 9, 3, 3, 9, 5, 9, 7, 7, 3, 5]  # 3 ends n-grams


def test_a_token_takes_the_rows_that_hashes_of_the_last_tokens_name() -> None:
    model = lively(config_of(KIND))
    config, table = model.config.at(0), model.blocks[0].ngram.tokens.weight
    found = record(model, encoding_of(IDS))["L0.ngram.tokens"]
    for place, token in enumerate(IDS):
        last, back, rows = [token], place - 1, []
        while len(last) < config.ngram_order:  # nothing before an end, or before the text
            last.append(config.ngram_end if back < 0 or last[1:2] == [config.ngram_end] else IDS[back])
            back -= 1
        for number, (size, first) in enumerate(zip(sizes_of(config), firsts_of(config), strict=True)):
            mixed = 0
            for id_, multiplier in list(zip(last, multipliers_of(config), strict=True))[: 2 + number // 2]:
                mixed ^= id_ * multiplier
            rows.append(first + mixed % size)
        assert torch.equal(found[place], table[rows].flatten())


def test_a_query_sees_its_best_whole_blocks_and_what_follows_them() -> None:
    config = config_of(KIND)
    trace = record(lively(config), encoding_of(IDS))
    scores, chosen, size = trace["L1.index.scores"], trace["L1.index.chosen"], config.index_block
    for query in range(len(IDS)):
        whole = (query + 1) // size
        best = sorted(range(whole), key=lambda block: -float(scores[query, block * size]))
        blocks = best[: config.index_keys // size]
        expected = {block * size + key for block in blocks for key in range(size)} | {*range(whole * size, query + 1)}
        assert {*chosen[query].nonzero().flatten().tolist()} == expected
