"""Training of tokenizers: characters, byte-level BPE, WordPiece."""

from collections.abc import Callable, Iterable, Iterator

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from tinytf.errors import UsageError
from tinytf.text.tokenizer import Tokenizer

END_OF_TEXT = "<|endoftext|>"
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_characters(texts: Iterable[str]) -> Tokenizer:
    """One token for each character; ids follow the sorted characters, so equal sets of characters give equal ids."""
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    library = LibraryTokenizer(models.WordLevel({char: i for i, char in enumerate(sorted(characters))}, unk_token=""))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    library.decoder = decoders.Fuse()
    return Tokenizer(library)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE as in GPT-2: every text can be encoded, and a space belongs to the word after it."""
    _require_room(vocab_size, 257, "256 bytes and an end token")
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return Tokenizer(library)


def train_wordpiece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """WordPiece as in uncased BERT, with [CLS] before and [SEP] after."""
    _require_room(vocab_size, 100, "the special tokens and an alphabet")
    texts = list(texts) if isinstance(texts, Iterator) else texts  # read twice
    trained = LibraryTokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer = normalizers.BertNormalizer(lowercase=True)
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The trainer numbers letters inside words in hash-table order, and breaks ties by these numbers. As special tokens
    # they have fixed numbers, so that equal texts give equal vocabularies.
    split = trained.pre_tokenizer.pre_tokenize_str
    words = {word for text in texts for word, _ in split(normalizer.normalize_str(text))}
    inside = sorted({f"##{char}" for word in words for char in word[1:]})
    specials = [*BERT_SPECIALS, *inside]
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=specials, show_progress=False)
    trained.train_from_iterator(texts, trainer)

    library = LibraryTokenizer(models.WordPiece(trained.get_vocab(), unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(BERT_SPECIALS)
    ends = [(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    library.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return Tokenizer(library)


def with_end(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer of ``train_bpe`` that puts its end token after every text, as those of encoders do."""
    library = LibraryTokenizer.from_str(tokenizer.library.to_str())
    end = processors.TemplateProcessing(
        single=f"$A {END_OF_TEXT}", special_tokens=[(END_OF_TEXT, library.token_to_id(END_OF_TEXT))]
    )
    library.post_processor = processors.Sequence([library.post_processor, end])
    return Tokenizer(library)


TRAINERS: dict[str, Callable[[Iterable[str], int], Tokenizer]] = {
    "char": lambda texts, _: train_characters(texts),
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
}


def _require_room(vocab_size: int, least: int, why: str) -> None:
    if vocab_size < least:
        raise UsageError(f"a vocabulary of {vocab_size} is too small: it needs at least {least}, for {why}")
