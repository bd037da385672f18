"""The tokenizer against Hugging Face ``tokenizers`` and the fastest exact peers.

Exactness comes first: a peer whose ids differ from the reference's on any text of this bench is listed, but
not compared with. Times are CPU time of the calling thread, from ``str`` to ids in hand; both sides of a
ratio are measured in turn in one run. *Warm* texts have been encoded before; *cold* ones are seen once, by
tokenizers that have encoded other texts of the kind.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from blink_numba.bench.report import Row, median_row
from blink_numba.bench.tokenizer_peers import HF, PEERS, Encode, Peer, tokenizer_json
from blink_numba.bench.tokenizer_texts import KINDS, texts
from tokenizer import Tokenizer, load, published

VOCABULARIES = ("smollm2", "llama3")
WARM_TOKENS = (10, 256, 2048)
COLD_TOKENS = 256
_WARM_TEXTS = 8
_COLD_TEXTS = 120
#: Rounds of other texts before cold ones are timed: tokenizers fill tables of their own at first.
_COLD_WARM_UP = 2
_OURS = "blink-numba"
#: Tokens that we encode for one measurement: some milliseconds, so that what ran before does not count.
_WARM_WORK = 200_000
_STREAM_TOKENS = 200_000

#: Targets of the ratios to Hugging Face by kind of text and tokens; other combinations are shown without.
TARGETS = {
    **{(kind, n): float(t) for kind in ("en", "code") for n, t in ((10, 15), (256, 30), (2048, 45))},
    **{("cjk", n): 12.0 for n in (256, 2048)},
}
COLD_TARGETS = {"smollm2": 2.0, "llama3": 1.0}


@dataclass(frozen=True)
class _Subject:
    """One vocabulary in this bench: ours, and the tokenizer.json that the peers read."""

    name: str
    ours: Tokenizer
    json: str

    def make(self, peer: Peer) -> Encode | None:
        return peer.make(self.name, self.ours.vocabulary, self.json)


def run(
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each measurement; the median counts.")] = 7,
    peers: Annotated[bool, typer.Option(help="Compare with the installed peers, not only with HF.")] = True,
    plot: Annotated[str, typer.Option(help="Also draw the ratios to this SVG or PNG file.")] = "",
) -> list[Row]:
    """Tokenizer speed against Hugging Face and the fastest exact peers, after a check of exactness.

    Parameters
    ----------
    repeats : int
        Rounds of each measurement; the median counts.
    peers : bool
        Compare with all installed peers; otherwise only with Hugging Face.
    plot : str
        File for a plot of the ratios; needs matplotlib.

    Returns
    -------
    list of Row

    Raises
    ------
    typer.BadParameter
        If the plot could not be drawn: said before minutes of measuring, not after.
    """
    if plot:
        _require_drawable(plot)
    rows: list[Row] = []
    mismatches = 0
    for name in VOCABULARIES:
        ours = load(published.path(name))
        subject = _Subject(name, ours, tokenizer_json(name, ours.vocabulary))
        wrong = _wrong_texts(subject, PEERS if peers else (HF,))
        mismatches += wrong.pop(_OURS)
        rows += [Row(f"{name}/inexact/{peer}", n, "texts", better="lower") for peer, n in wrong.items()]
        rows += _warm_rows(subject, repeats)
        rows += _cold_rows(subject, wrong, repeats)
    rows.append(Row("mismatches", mismatches, "texts", 0.0, "lower"))
    rows.append(_stream_row(load(published.path("smollm2")), repeats))
    if plot:
        _draw(rows, plot)
    return rows


def _require_drawable(plot: str) -> None:
    if Path(plot).suffix not in (".svg", ".png") or not Path(plot).absolute().parent.is_dir():
        raise typer.BadParameter(f"--plot needs an .svg or .png file in an existing folder, not {plot}")
    if importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("--plot needs matplotlib: pip install matplotlib")


def _length_of(subject: _Subject) -> Callable[[str], int]:
    return lambda text: len(subject.ours.encode(text))


def _wrong_texts(subject: _Subject, peers: Sequence[Peer]) -> dict[str, int]:
    """Number of texts, of every kind and length, on which a tokenizer differs from Hugging Face."""
    samples = [""]
    for kind in KINDS:
        for tokens in WARM_TOKENS:
            samples += texts(kind, tokens, 20, 1, _length_of(subject))
    samples += [
        " " * 300,
        "a" * 5000,
        "\n \n\t x" * 50,
        "ab" * 4000,
        "I'M don't 'ſ 1234567",
        "\x00\x04 \u0378é",
        "x²+½ Ⅷ ①",
        "=\x06=\x13=",
        "".join(random.Random(1).choices("etaoinshrdlu", k=70_000)),
    ]
    reference = subject.make(HF)
    assert reference is not None
    expected = [list(reference(s)) for s in samples]
    encoders: dict[str, Encode] = {_OURS: lambda s: subject.ours.encode(s).tolist()}
    for peer in peers:
        if peer is not HF and peer.installed and (encode := subject.make(peer)) is not None:
            encoders[peer.name] = encode
    return {
        name: sum(list(encode(s)) != ids for s, ids in zip(samples, expected))
        for name, encode in encoders.items()
    } | {HF.name: 0}


def _cpu_seconds(encode: Callable[[str], object], samples: Sequence[str], loops: int = 1) -> float:
    start = time.thread_time_ns()
    for _ in range(loops):
        for text in samples:
            encode(text)
    return (time.thread_time_ns() - start) / 1e9 / loops


def _warm_rows(subject: _Subject, repeats: int) -> list[Row]:
    reference = subject.make(HF)
    assert reference is not None
    ours = subject.ours.encode
    rows = []
    for kind in KINDS:
        for tokens in WARM_TOKENS:
            samples = texts(kind, tokens, _WARM_TEXTS, 2, _length_of(subject))
            counted = sum(map(_length_of(subject), samples))
            loops = max(1, _WARM_WORK // counted)
            _cpu_seconds(reference, samples)
            _cpu_seconds(ours, samples, loops)
            ratios, own = [], []
            for _ in range(repeats):
                theirs = _cpu_seconds(reference, samples, max(1, loops // 40))
                own.append(_cpu_seconds(ours, samples, loops))
                ratios.append(theirs / own[-1])
            name = f"{subject.name}/{kind}"
            microseconds = [seconds / len(samples) * 1e6 for seconds in own]
            rows.append(median_row(f"{name}/vs_hf/{tokens}", ratios, "x", TARGETS.get((kind, tokens))))
            rows.append(median_row(f"{name}/us/{tokens}", microseconds, "us", better="lower"))
    return rows


def _cold_rows(subject: _Subject, wrong: dict[str, int], repeats: int) -> list[Row]:
    """Cold time of the fastest exact peer over ours: texts seen once, by tokenizers that have seen others.

    `wrong` has the number of texts on which each peer is inexact. Inexact ones are shown, not compared with.
    """
    rows = []
    # Hugging Face is several times slower than any other, and measured elsewhere.
    peers = [p for p in PEERS if p.name in wrong and (p is not HF or len(wrong) == 1)]
    encoders: dict[str, Callable[[str], object]] = {
        _OURS: Tokenizer(subject.ours.vocabulary, subject.ours.tables).encode
    }
    encoders |= {p.name: e for p in peers if (e := subject.make(p)) is not None}
    for kind in ("en", "code", "cjk"):
        of_round: dict[str, list[float]] = {name: [] for name in encoders}
        for n in range(_COLD_WARM_UP + max(3, repeats)):
            samples = texts(kind, COLD_TOKENS, _COLD_TEXTS, 100 + n, _length_of(subject))
            counted = sum(map(_length_of(subject), samples))
            for name, encode in encoders.items():
                nanoseconds = _cpu_seconds(encode, samples) / counted * 1e9
                if n >= _COLD_WARM_UP:
                    of_round[name].append(nanoseconds)
        case = f"{subject.name}/{kind}"
        for name, values in of_round.items():
            row = median_row(f"{case}/cold_ns_per_token/{name}", values, "ns", better="lower")
            row.extra["exact"] = wrong.get(name, 0) == 0
            rows.append(row)
        exact = [name for name in of_round if name != _OURS and wrong[name] == 0]
        best = min(exact, key=lambda name: statistics.median(of_round[name]))
        ratios = [theirs / own for theirs, own in zip(of_round[best], of_round[_OURS])]
        rows.append(
            median_row(f"{case}/vs_best_exact/cold", ratios, "x", COLD_TARGETS[subject.name], best=best)
        )
    return rows


def _stream_row(ours: Tokenizer, repeats: int) -> Row:
    """Tokens a second through `StreamDecoder.push`, one at a time, over English, Chinese and Japanese."""
    samples = [t for kind in ("en", "cjk") for t in texts(kind, 2048, 8, 3, lambda s: len(ours.encode(s)))]
    ids = [i for text in samples for i in ours.encode(text).tolist()]
    ids = (ids * (_STREAM_TOKENS // len(ids) + 1))[:_STREAM_TOKENS]
    rates = []
    for _ in range(repeats):
        stream = ours.stream_decoder()
        start = time.thread_time_ns()
        for token in ids:
            stream.push(token)
        rates.append(len(ids) / ((time.thread_time_ns() - start) / 1e3))
        stream.flush()
    return median_row("stream_decode_mtok_s", rates, "Mtok/s", 2.0)


def _draw(rows: Sequence[Row], file: str) -> None:
    """Bars of the ratios to Hugging Face, with a mark at each target."""
    from matplotlib.figure import Figure

    shown = [r for r in rows if "/vs_hf/" in r.case or "/vs_best_exact/" in r.case]
    figure = Figure(figsize=(8, 0.28 * len(shown) + 1), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    axes.barh(places, [r.value for r in shown], color=["C0" if r.ok is not False else "C3" for r in shown])
    axes.plot([r.target or float("nan") for r in shown], places, "k|", markersize=12, label="target")
    axes.set_yticks(places, [r.case for r in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("times faster")
    axes.legend(loc="lower right")
    figure.savefig(file)
