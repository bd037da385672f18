"""Texts for the tokenizer bench: English, code, Chinese with Japanese, and emoji.

English is the prose of Python's own help topics, code its standard library: every installation has them.
Chinese and Japanese sentences are put together from phrases, so that there is any amount of text whose
clauses, which are what tokenizers see as words, are nearly all different.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

_ZH_TIME = [
    "今天早上",
    "昨天晚上",
    "上个星期",
    "去年冬天",
    "最近几年",
    "每逢周末",
    "到了春天",
    "下雨的时候",
    "放学以后",
    "会议开始前",
    "天刚亮时",
    "假期里",
]
_ZH_WHO = [
    "我们",
    "他的老师",
    "年轻的工程师",
    "那位医生",
    "邻居家的孩子",
    "研究小组",
    "图书馆的管理员",
    "几位老朋友",
    "这家公司",
    "公园里的游客",
    "我的祖父",
    "新来的同事",
    "乘客们",
    "学校的学生",
    "村里的农民",
    "那个作家",
]
_ZH_HOW = [
    "认真地",
    "慢慢地",
    "高兴地",
    "悄悄地",
    "重新",
    "终于",
    "立刻",
    "常常",
    "仔细",
    "一起",
    "反复",
    "顺利地",
    "匆忙地",
    "耐心地",
]
_ZH_DO = [
    "讨论了",
    "整理了",
    "打开了",
    "解释了",
    "修好了",
    "参观了",
    "阅读了",
    "计算了",
    "观察着",
    "比较了",
    "翻译了",
    "记录下",
    "设计出",
    "准备好",
    "检查了",
    "介绍了",
    "种下了",
    "寄出了",
]
_ZH_WHAT = [
    "新的计划",
    "复杂的数学问题",
    "这本历史书",
    "城市的交通系统",
    "古老的建筑",
    "一台旧电脑",
    "海边的风景",
    "语言模型的结果",
    "昂贵的设备",
    "简单的晚餐",
    "一封长信",
    "气候变化的原因",
    "实验数据",
    "花园里的玫瑰",
    "山上的小路",
    "传统的音乐",
    "关于人工智能的文章",
    "三张老照片",
]
_ZH_THEN = [
    "因此大家都很满意",
    "但是时间并不充足",
    "结果比预想的更好",
    "于是决定继续努力",
    "虽然过程有些困难",
    "这让所有人感到惊讶",
    "然后一起回到了家",
    "天气也渐渐变暖了",
    "并且写下了详细的说明",
    "不过仍然存在许多问题",
]

_JA_TIME = [
    "今朝は",
    "昨日の夜",
    "先週の土曜日に",
    "春になると",
    "雨の日には",
    "放課後",
    "会議の前に",
    "夏休みの間",
    "最近",
    "夜明け前に",
    "駅に着くと",
    "毎年秋に",
]
_JA_WHO = [
    "私たちは",
    "若い技術者は",
    "隣の子どもが",
    "図書館の職員は",
    "先生が",
    "研究者たちは",
    "古い友人と",
    "旅行客が",
    "父は",
    "新しい店員が",
    "学生たちは",
    "村の人々は",
    "運転手は",
    "その作家は",
    "医者は",
]
_JA_WHAT = [
    "難しい数学の問題を",
    "新しいプログラムを",
    "山の上の景色を",
    "古い写真を",
    "実験のデータを",
    "長い手紙を",
    "コンピューターの部品を",
    "伝統的な音楽を",
    "美味しい料理を",
    "交通の仕組みを",
    "日本語の文章を",
    "庭の花を",
    "大切な約束を",
    "言語モデルの結果を",
    "電車の時刻表を",
]
_JA_HOW = [
    "ゆっくりと",
    "丁寧に",
    "もう一度",
    "静かに",
    "すぐに",
    "みんなで",
    "何度も",
    "楽しそうに",
    "注意深く",
    "初めて",
]
_JA_DO = [
    "調べました",
    "説明しました",
    "作り直した",
    "眺めていた",
    "読み終えました",
    "比較してみた",
    "思い出した",
    "準備しています",
    "片付けた",
    "翻訳しました",
    "記録した",
    "確かめました",
]
_JA_THEN = [
    "とても嬉しかったです",
    "時間が足りませんでした",
    "結果は予想より良かった",
    "それでも問題は残っている",
    "みんなが驚いていた",
    "天気も少しずつ暖かくなった",
    "もっと努力しようと決めた",
]

_EMOJI = [
    "😀",
    "😂",
    "🥰",
    "👍🏽",
    "🎉",
    "🚀",
    "❤️",
    "🔥",
    "👨\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "🇯🇵",
    "🇩🇪",
    "☕️",
    "🐈\u200d⬛",
    "🧑\u200d💻",
    "✅",
    "⚠️",
    "🌍",
    "🍜",
    "🎸",
    "🤷\u200d♀️",
    "💯",
    "✨",
    "🙏🏿",
]
_CHAT = [
    "so",
    "happy",
    "today",
    "wow",
    "that",
    "was",
    "great",
    "see",
    "you",
    "soon",
    "thanks",
    "let",
    "us",
    "go",
    "now",
    "best",
    "news",
    "ever",
    "ok",
]


def _chinese(rng: random.Random) -> str:
    pick = rng.choice
    first = pick(_ZH_TIME) + pick(_ZH_WHO) + pick(_ZH_HOW) + pick(_ZH_DO) + pick(_ZH_WHAT)
    return first + "，" + pick(_ZH_WHO) + pick(_ZH_DO) + pick(_ZH_WHAT) + "，" + pick(_ZH_THEN) + "。"


def _japanese(rng: random.Random) -> str:
    pick = rng.choice
    first = pick(_JA_TIME) + "、" + pick(_JA_WHO) + pick(_JA_WHAT) + pick(_JA_HOW) + pick(_JA_DO)
    return first + "。" + pick(_JA_WHO) + pick(_JA_WHAT) + pick(_JA_DO) + "が、" + pick(_JA_THEN) + "。"


def _cjk(rng: random.Random) -> Iterator[str]:
    while True:
        sentence = _chinese if rng.random() < 0.5 else _japanese
        yield "".join(sentence(rng) for _ in range(4)) + "\n"


def _emoji(rng: random.Random) -> Iterator[str]:
    while True:
        yield " ".join(rng.choice(_EMOJI if rng.random() < 0.5 else _CHAT) for _ in range(12)) + "\n"


@lru_cache(maxsize=1)
def _prose() -> list[str]:
    """Paragraphs of Python's help topics, without the indented examples and grammar."""
    from pydoc_data.topics import topics

    paragraphs = [p for text in topics.values() for p in text.split("\n\n")]
    return [p + "\n\n" for p in paragraphs if len(p) > 120 and not p.startswith(" ") and "::=" not in p]


@lru_cache(maxsize=1)
def _sources() -> list[str]:
    """Pieces of about 1500 characters of standard-library modules."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    pieces = []
    for path in sorted(folder.glob("*.py"))[:160]:
        text = path.read_text(errors="ignore")
        if text.isascii():
            pieces += [text[at : at + 1500] for at in range(0, len(text), 1500)]
    return pieces


def _shuffled(pieces: list[str], rng: random.Random) -> Iterator[str]:
    order = list(range(len(pieces)))
    while True:
        rng.shuffle(order)
        for n in order:
            yield pieces[n]


KINDS = ("en", "code", "cjk", "emoji")


def texts(kind: str, tokens: int, count: int, seed: int, length_of: Callable[[str], int]) -> list[str]:
    """`count` different texts of about `tokens` tokens.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    length_of : callable
        Number of tokens of a text.
    """
    rng = random.Random(seed)
    pieces = {
        "en": lambda: _shuffled(_prose(), rng),
        "code": lambda: _shuffled(_sources(), rng),
        "cjk": lambda: _cjk(rng),
        "emoji": lambda: _emoji(rng),
    }[kind]()
    out = []
    for _ in range(count):
        text = next(pieces)
        while (length := length_of(text)) < tokens:
            text += next(pieces)
        for _ in range(4):  # cut in proportion: a few steps come within a token or two
            text = text[: max(1, round(len(text) * tokens / length))]
            length = length_of(text)
            if length <= tokens:
                break
        out.append(text)
    return out
