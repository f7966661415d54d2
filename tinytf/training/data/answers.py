"""What of a conversation the assistant writes: its answers, each with the token that ends it.

A template may strip thoughts from an answer or add some, write something else in the prompt than in the history, or
write no end. So nothing is expected of it but that it writes the answers themselves unchanged.
"""

import re
from functools import lru_cache

from tinytf.errors import TinytfError, TrainingError, UsageError
from tinytf.text.chat import ChatTemplate, Conversation, without_thoughts
from tinytf.text.tokenizer import Tokenizer

Bodies = dict[int, tuple[int, int]]
"""The span of each message's content, without thoughts, by number."""
_ANSWERED = Conversation([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}])
_ASKED_AGAIN = Conversation([*_ANSWERED.messages, {"role": "user", "content": "Why?"}])


def assistant_spans(tokenizer: Tokenizer, conversation: Conversation) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and the spans of the assistant's turns, including what ends a turn.

    A turn begins where the text departs from the prompt for it, so thoughts that the template writes, even empty
    ones, belong to it, unless the prompt has them. It ends with the first end after the answer. Where the template
    writes none after the last answer, the end of other answers follows it, or else the tokenizer's.

    Raises TrainingError for a template that changes an answer, UsageError if it is missing or refuses the messages.
    """
    if tokenizer.chat is None:
        raise UsageError("the chat objective needs a chat template", "begin --from an Instruct model")
    chat, messages, spans = tokenizer.chat, conversation.messages, []
    text = chat.render(conversation)[0]
    roles, bodies = _bodies(chat, conversation, text)
    ends, missing_end = _ends(tokenizer)
    for number in range(1, len(messages)):
        if messages[number]["role"] != "assistant":
            continue
        prompt, in_prompt = chat.marked(Conversation(messages[:number], conversation.tools), roles, thoughts=False)
        before = max((n for n in bodies.keys() & in_prompt.keys() if n < number), default=None)
        at, at_prompt = (0, 0) if before is None else (bodies[before][1], in_prompt[before][1])
        body = bodies.get(number, (None, None))
        start = at + _length_of_prompt(text[at : body[0]], prompt[at_prompt:])
        after = start if body[1] is None else body[1]
        following = min((first for n, (first, _) in bodies.items() if n > number), default=len(text))
        found = ends.search(text, after, following) if ends is not None else None
        if found is not None:
            spans.append((start, found.end()))
        elif number == len(messages) - 1 and text[start:].strip():
            text = (text if body[1] is None else text[: body[1]]).rstrip() + missing_end
            spans.append((start, len(text)))
        elif body[1] is not None:
            spans.append((start, body[1]))
    return text, spans


def _length_of_prompt(text: str, prompt: str) -> int:
    """Where the ``prompt`` ends in ``text``, or, if not in it, what they share of its beginning; but for space."""
    i, j = max(text.find(prompt.strip()), 0), len(prompt) - len(prompt.lstrip())
    length = 0
    while i < len(text) and j < len(prompt):
        if text[i] == prompt[j]:
            i, j = i + 1, j + 1
            length = i
        elif text[i].isspace():
            i += 1
        elif prompt[j].isspace():
            j += 1
        else:
            break
    return length


def _bodies(chat: ChatTemplate, conversation: Conversation, text: str) -> tuple[tuple[str, ...] | None, Bodies]:
    """The roles whose contents can be marked in the ``text`` (None: all), and the spans of these contents."""
    answers = {
        number
        for number, message in enumerate(conversation.messages)
        if message["role"] == "assistant" and isinstance(message.get("content"), str)
        if number and without_thoughts(message["content"]).strip()
    }
    for roles in (None, ("assistant",)):  # a template may inspect what others say, such as the result of a tool
        unmarked, bodies = chat.marked(conversation, roles, thoughts=False)
        if unmarked == text and answers <= bodies.keys():
            return roles, bodies
    raise TrainingError(
        "the chat template does not write the assistant's answers unchanged, so they cannot be told from the rest",
        "tinytf tokens --chat shows what it writes",
    )


@lru_cache(maxsize=4)
def _ends(tokenizer: Tokenizer) -> tuple[re.Pattern[str] | None, str]:
    """What ends an answer, and what to write after a last answer to which the template gives no end.

    An end is a token that ends texts, and the first special token after an answer if the template writes one even
    after the last answer; without special tokens, what it writes there after any answer.
    """
    chat, added = tokenizer.chat, tokenizer.library.get_added_tokens_decoder()
    assert chat is not None
    own = [added[token_id].content for token_id in tokenizer.end_ids if token_id in added]
    special = _any_of([*(token.content for token in added.values()), *chat.names.values()])
    tails = []
    for conversation in (_ANSWERED, _ASKED_AGAIN):
        try:
            text, bodies = chat.marked(conversation)
            tails.append(text[bodies[1][1] : bodies[2][0] if 2 in bodies else None])
        except (TinytfError, KeyError):
            tails.append("")
    last, between = ((special.search(tail) if special else None) for tail in tails)
    ends = [match[0] for match in (between, last) if match is not None and (last is not None or match[0] in own)]
    tail = tails[0].strip()
    if last is None and tail and tails[1].strip().startswith(tail):
        ends.append(tail)
    ends += own
    return _any_of(ends), next(iter(ends), "")


def _any_of(words: list[str]) -> re.Pattern[str] | None:
    """A pattern of any of ``words``, the longest first; None for no words."""
    chosen = sorted({*words} - {""}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, chosen))) if chosen else None
