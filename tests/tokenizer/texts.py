"""Random texts that are hard on tokenizers, for differential tests."""

import random
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from tokenizer.unicode_classes import CATEGORIES, categories

#: Characters that patterns treat specially, dense enough that their combinations come up.
TRICKY = (
    " " * 12 + "\n" * 6 + "\r\t\v\f" + "''\"!?.,:;-_/\\()[]{}<>|@#$%^&*+=~`"
    "aAbBsStTmMdDlLrReEvVxX" * 2 + "0123456789" * 2 + "\x00\x04\x1c\x1f\x7f\x85\xa0"
    "éÉßſKÅñ²½¹٣५१一二三今天我们日本語のカタカナー。、，！？「」・゠ぁんァ한국어가각힣ㄱ"
    "\u0300\u0301\u0327\u0345\u093c\u05b0\u3099\u200b\u200c\u200d\ufeff\u2028\u2029"
    "\u3000\u180e\u00ad\ufffd\ue000\u0378"
    "ДдЖжёЁΑαΩως\u0587\u0531אבעברית\u0627\u0644\u0639\u0661नमस्तेไทยកខ"
    "😀👨👩👧🏽🇩🇪☃️✓™€£¥ªº\U0001d400\U0010ffff\U00020000"
    "ǅǈǲʰʱˣ〇ⅷⅧ\u16ee"
)

FRAGMENTS = (
    "'s",
    "'S",
    "'ll",
    "'LL",
    "'re",
    "'ve",
    "'t",
    "'m",
    "'d",
    "'ſ",
    " '",
    "''",
    "don't",
    "I'M",
    "\r\n",
    "\n\n",
    "  \n",
    "\n  ",
    " \n \n ",
    "\t\t",
    "!!\n",
    "!\n\n",
    "...",
    "=====",
    "-----",
    "  ",
    "    ",
    "        ",
    "the",
    " the",
    " The",
    "HTTPServer",
    "camelCase",
    "snake_case",
    "ing",
    "tion",
    " of",
    "return",
    "self.",
    "def f(x):\n    return x\n",
    "12",
    "123",
    "1234567890",
    "3.14",
    "2024-01-01",
    "今天天气很好",
    "我们去公园吧。",
    "これはテスト",
    "カタカナ",
    "한국어",
    "안녕하세요",
    "Привет",
    "мир",
    "Ελλάδα",
    "naïve",
    "café",
    "नमस्ते",
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "aaaaaaaaaaaaaaaa",
    "abababababab",
    "\u0e01\u0e49",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|",
    "|>",
    "<|begin_of_text|>",
    "<｜User｜>",
    "[INST]",
    "</s>",
    "https://example.com/a?b=c&d=%20",
    "\x00\x00",
    "a/b/c",
    "!/\n/",
)


@lru_cache(maxsize=1)
def _by_category() -> list[np.ndarray]:
    scalars = np.r_[0:0xD800, 0xE000:0x110000]
    of_scalar = categories()[scalars]
    return [scalars[of_scalar == c] for c in CATEGORIES.values() if (of_scalar == c).any()]


def random_text(seed: int, length: int) -> str:
    """About `length` characters, reproducible from `seed`, of one of several mixtures."""
    rng = random.Random(seed)
    style = rng.random()
    if style > 0.7:  # mostly ASCII, so that the few wide characters meet every position of a block
        sparse = rng.choices(" etaoin\n!,.'1", k=length)
        for _ in range(length // 40):
            sparse[rng.randrange(length)] = rng.choice(TRICKY)
        return "".join(sparse)
    out: list[str] = []
    count = 0
    while count < length:
        kind = rng.random()
        if kind < 0.45 or style < 0.2:
            piece = "".join(rng.choices(TRICKY, k=rng.randint(1, 12)))
        elif kind < 0.75:
            piece = rng.choice(FRAGMENTS)
        elif kind < 0.85:
            members = rng.choice(_by_category())
            piece = "".join(chr(members[rng.randrange(len(members))]) for _ in range(rng.randint(1, 4)))
        elif kind < 0.95:
            piece = "".join(rng.choices("etaoin shrdlu", k=rng.randint(4, 40)))
        else:
            piece = rng.choice(TRICKY + "abc") * rng.randint(2, 90)
        out.append(piece)
        count += len(piece)
    return "".join(out)


def texts() -> st.SearchStrategy[str]:
    """Short texts that shrink well, and long ones by seed."""
    characters = st.characters(exclude_categories=["Cs"])
    piece = st.one_of(
        st.text(alphabet=TRICKY, max_size=12),
        st.sampled_from(FRAGMENTS),
        st.text(alphabet=characters, max_size=4),
        st.builds(lambda c, n: c * n, st.sampled_from(TRICKY), st.integers(2, 90)),
    )
    return st.one_of(
        st.lists(piece, max_size=25).map("".join),
        st.builds(random_text, st.integers(0, 2**32), st.integers(100, 3000)),
    )
