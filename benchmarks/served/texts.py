"""Texts that never repeat, of known lengths: real words in random order, counted in tokens.

    short    8 to 24 tokens, every length alike
    mixed    4 to 256 tokens, log-normal: median 20, mean 27
    long     512 tokens, all that the model takes

A server that is asked for the same lengths over and over keeps what it made for them; in use no
batch comes twice.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent.parent / "tests"
SOURCES = (
    TESTS / "model" / "texts.txt",
    TESTS.parent / "service" / "heads" / "relations.jsonl",
)
SPECIAL = 2  # tokens that the model puts around every text
SHORT, MIXED, LONG = (8, 24), (4, 256), (512, 512)

Count = Callable[[list[str]], list[int]]  # words -> how many tokens each is, special ones aside


def read_words() -> list[str]:
    """Return the distinct words of the repository's own sentences."""
    text = "\n".join(path.read_text("utf-8") for path in SOURCES)
    return sorted(set(re.findall(r"\b[a-z]{2,}\b", text.lower())))


def make_counter(folder: Path) -> Count:
    """Return how a model's tokenizer counts words."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def count(every: list[str]) -> list[int]:
        return [len(each.ids) for each in tokenizer.encode_batch(every, add_special_tokens=False)]

    return count


@dataclass
class Texts:
    """Random texts, none twice, the same ones for the same seed."""

    sizes: dict[str, int]  # word -> its tokens
    chance: random.Random

    def __post_init__(self) -> None:
        self.words = list(self.sizes)
        self.single = [word for word in self.words if self.sizes[word] == 1]
        self.seen: set[str] = set()

    def short(self) -> str:
        """Return a sentence's length."""
        return self.unseen(self.chance.randint(*SHORT))

    def mixed(self) -> str:
        """Return a text: mostly a sentence, now and then a page."""
        low, high = MIXED
        return self.unseen(min(high, max(low, round(self.chance.lognormvariate(3.0, 0.8)))))

    def long(self) -> str:
        """Return a text as long as the model takes."""
        return self.unseen(LONG[0])

    def unseen(self, tokens: int) -> str:
        """Return a new text of exactly so many tokens, special ones included."""
        while (text := " ".join(self.fill(tokens - SPECIAL))) in self.seen:
            pass
        self.seen.add(text)
        return text

    def fill(self, tokens: int) -> Iterator[str]:
        """Yield words of so many tokens together."""
        while tokens > 0:
            word = self.chance.choice(self.words)
            if self.sizes[word] > tokens:
                word = self.chance.choice(self.single)
            tokens -= self.sizes[word]
            yield word


@dataclass(frozen=True)
class Workload:
    """What is sent: so many connections, each with one request under way; or an open loop."""

    name: str
    connections: int  # 0: requests come at random moments, whether or not earlier ones are answered
    request: Callable[[Texts], list[str]]  # the texts of one request
    ahead: int  # requests for one second, made before the clock starts; more are made meanwhile


def draw_mix(texts: Texts) -> list[str]:
    """Return one request of many users: mostly a sentence, some paragraphs, now and then a lot."""
    draw = texts.chance.random()
    if draw < 0.80:
        return [texts.short()]
    if draw < 0.95:
        return [texts.mixed() for _ in range(8)]
    return [texts.mixed() for _ in range(32)] if draw < 0.99 else [texts.long()]


ONE, EIGHT, MANY = (
    Workload(
        f"1 short text, {count} connection{'s' * (count > 1)}", count, lambda t: [t.short()], 600
    )
    for count in (1, 8, 64)
)
BATCHES = Workload("32 mixed texts, 4 connections", 4, lambda t: [t.mixed() for _ in range(32)], 25)
PAGES = Workload("8 x 512 tokens, 1 connection", 1, lambda t: [t.long() for _ in range(8)], 3)
CAPACITY = Workload(
    "the mix, 8 connections", 8, draw_mix, 100
)  # what the open loop's rate follows from
POISSON = Workload("the mix, Poisson arrivals", 0, draw_mix, 100)
WORKLOADS = {
    "one": ONE,
    "eight": EIGHT,
    "many": MANY,
    "batches": BATCHES,
    "pages": PAGES,
    "poisson": POISSON,
}


def words_with_tokens(count: Count) -> dict[str, int]:
    """Return the words with their tokens."""
    every = read_words()
    return dict(zip(every, count(every), strict=True))


def embed_body(texts: list[str]) -> bytes:
    """Return a request's body in the words of TEI's POST /embed."""
    return json.dumps({"inputs": texts}).encode()


def openai_body(texts: list[str]) -> bytes:
    """Return the same in the words of OpenAI's, for a server that has nothing else."""
    return json.dumps({"model": "model", "input": texts}).encode()
