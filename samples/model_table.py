"""Print the part of docs/models.md on the built-in models, from their cards: python samples/model_table.py"""

from tinytf.checkpoints.run import read_config
from tinytf.config import ModelConfig
from tinytf.files import read_json
from tinytf.presets import BUILT_IN
from tinytf.sources import ASSETS


def markdown() -> str:
    """What each model is, and its measured figures."""
    tiny, encoder, translator = (read_json(ASSETS / name / "card.json") for name in BUILT_IN)
    decoder_config, encoder_config = read_config(ASSETS / "tiny"), read_config(ASSETS / "tiny-encoder")
    repeats = tiny["random_repeats"]
    previous, induction = repeats["previous_token"], repeats["induction"]
    decoder = (
        f"- `tiny`: {tiny['what']}; {_shape(decoder_config)}. Held-out perplexity "
        f"{tiny['held_out_perplexity_per_word']} a word, where a 5-gram model with back-off (Kneser-Ney, same text, "
        f"same tokens) has {tiny['five_gram_perplexity_per_word']}. On repeated random tokens its loss is "
        f"{repeats['first_half_loss']} in the first half and {repeats['second_half_loss']} in the second; "
        f"{previous['head']} is a previous-token head (score {previous['score']}), "
        f"{induction['head']} an induction head ({induction['score']})."
    )
    masked = (
        f"- `tiny-encoder`: {encoder['what']}; {_shape(encoder_config)}. It fills "
        f"{100 * encoder['held_out_accuracy']:.1f} % of the held-out masked tokens right "
        f"(loss {encoder['held_out_loss']})."
    )
    looks = translator["looks_at"].items()
    heads = ", ".join(f"{of['head']} at the {part} ({100 * of['score']:.0f} % of its weight)" for part, of in looks)
    shape = _shape(read_config(ASSETS / "tiny-translator"))
    two_stacks = (
        f"- `tiny-translator`: {translator['what']}; the decoder has {shape}. "
        f"It writes {100 * translator['held_out_exact']:.1f} % of {translator['held_out_pairs']:,} held-out dates "
        f"exactly. Where it writes a part of the date, a head looks at that part of the source: {heads}."
    )
    return f"{decoder}\n{masked}\n{two_stacks}"


def _shape(config: ModelConfig) -> str:
    return (
        f"{config.n_layers} layers × {config.n_heads} heads, d_model {config.d_model}, {config.positions} positions, "
        f"{config.vocab_size:,} tokens"
    )


if __name__ == "__main__":
    print(markdown())
