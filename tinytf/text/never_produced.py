"""Vocabulary entries that no text can produce: a sign that a tokenizer is read in another way than it was made."""

from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers


def never_produced(library: Library) -> list[str] | None:
    """The entries that the tokenizer of BERT can give for no text, shortest first; None for other tokenizers.

    Its words are what is left of a text that is normalised and cut at spaces and around punctuation. Both rules look
    at one character at a time, so an entry with a character that no word contains is never produced. Entries that are
    not listed may still be beaten by longer ones wherever they occur.
    """
    model, normalizer, splitter = library.model, library.normalizer, library.pre_tokenizer
    if not (
        isinstance(model, models.WordPiece)
        and isinstance(normalizer, normalizers.BertNormalizer)
        and isinstance(splitter, pre_tokenizers.BertPreTokenizer)
    ):
        return None
    prefix, longest = model.continuing_subword_prefix, model.max_input_chars_per_word
    matched = {added.content for added in library.get_added_tokens_decoder().values()} | {model.unk_token}

    def is_word(text: str) -> bool:
        return [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))] == [text]

    entries = [entry for entry in library.get_vocab(with_added_tokens=False) if entry not in matched]
    inside = {char for char in set("".join(entries)) if is_word(f"a{char}a")}

    def is_possible(entry: str) -> bool:
        part = entry.removeprefix(prefix)
        return len(part) <= longest and (inside.issuperset(part) or (len(entry) == 1 and is_word(entry)))

    return sorted((entry for entry in entries if not is_possible(entry)), key=lambda entry: (len(entry), entry))
