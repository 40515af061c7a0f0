"""How fast ``autoswift profile`` counts, beside the articles' loop and ``datasets.map``; exits 1 on a miss.

python benchmarks/profile_speed.py                    # 40,000 rows, minutes
python benchmarks/profile_speed.py --rows 1000000     # the published table of docs/profile.md
python benchmarks/profile_speed.py --flat 5           # peak memory at 100 MB and at 5 GB as well

The rows are made from a fixed seed: lengths lognormal with a median of 200 tokens and sigma 1, a third of them
Chinese, words drawn by a Zipf law from Qwen's vocabulary (``pip install dashscope`` ships it). All run one after
the other in one go, so that ratios hold on a busy machine too; the two slow ways may be given fewer rows
(--slow-rows), their time per row is then what is compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import psutil
from vocabulary import packaged, qwen

from swift_autobatch.facts.byte_level import plain_bytes
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.model import read_model
from swift_autobatch.progress import Silent
from swift_autobatch.records import DataFacts, Environment, ModelFacts
from swift_autobatch.request import read_environment

SEED, MEDIAN, SIGMA, CHINESE = 1, 200, 1.0, 1 / 3
FULL_GAIN, PLAN_GAIN, PLAN_AIM = 2.5, 8.0, 20.0
OFF, MEMORY_MB, FLAT_SHARE = 0.01, 400, 1.15
TOP = 16
_PROGRAM = "import sys; sys.path[:0] = {path!r}; from profile_speed import loop, mapped, profiled, say; {call}"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One way to count: what it took, on how many rows, and the memory of its process and children at the peak."""

    name: str
    rows: int
    seconds: float
    peak_mb: float
    answer: Any

    @property
    def row_s(self) -> float:
        return self.seconds / self.rows


# --------------------------------------------------------------------------------------------------------- the rows


def make_rows(count: int, path: Path, tokenizer: Path, seed: int = SEED) -> Path:
    """Writes rows of query and response; the same bytes for the same arguments."""
    english, chinese = _words(tokenizer)
    weights = {id(words): list(accumulate(1 / (at + 10) for at in range(len(words)))) for words in (english, chinese)}
    chance = random.Random(seed)
    with path.open("w", encoding="utf-8") as out:
        for _ in range(count):
            length = max(4, int(chance.lognormvariate(math.log(MEDIAN), SIGMA)))
            words, step, ends = (
                (chinese, 8, ["，"]) if chance.random() < CHINESE else (english, 12, [".", ",", "; 42", "\n\n"])
            )
            drawn = chance.choices(words, cum_weights=weights[id(words)], k=length)
            text = "".join("".join(drawn[at : at + step]) + chance.choice(ends) for at in range(0, length, step))
            cut = len(text) // 5
            out.write(json.dumps({"query": text[:cut], "response": text[cut:]}, ensure_ascii=False) + "\n")
    return path


def _words(tokenizer: Path) -> tuple[list[str], list[str]]:
    """English words with their blank, and Chinese ones, in the order of the vocabulary."""
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    english, chinese = [], []
    for token in vocabulary:
        with suppress(UnicodeDecodeError):
            text = plain_bytes(token).decode()
            if text.isascii() and text[0] == " " and text[1:].isalpha() and len(text) > 2:
                english.append(text)
            elif all("\u4e00" <= character <= "\u9fff" for character in text):
                chinese.append(text)
    return english, chinese


# --------------------------------------------------------------------------------------------------------- the ways


def loop(path: str, tokenizer: str, count: int) -> dict[str, Any]:
    """The articles' way: one row after the other through the tokenizer."""
    from transformers import AutoTokenizer

    encoder = AutoTokenizer.from_pretrained(tokenizer)
    began = time.perf_counter()
    lengths = []
    with Path(path).open(encoding="utf-8") as rows:
        for _, line in zip(range(count), rows, strict=False):
            row = json.loads(line)
            lengths.append(len(encoder(row["query"] + row["response"])["input_ids"]))
    return {"seconds": time.perf_counter() - began, "tokens": sum(lengths)}


def mapped(path: str, tokenizer: str, count: int) -> dict[str, Any]:
    """``datasets.map``, batched, with a process a core."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    encoder = AutoTokenizer.from_pretrained(tokenizer)
    rows = load_dataset("json", data_files=path, split=f"train[:{count}]")
    began = time.perf_counter()

    def counted(batch: dict[str, list[str]]) -> dict[str, list[int]]:
        texts = [query + response for query, response in zip(batch["query"], batch["response"], strict=True)]
        return {"tokens": [len(ids) for ids in encoder(texts)["input_ids"]]}

    workers = len(os.sched_getaffinity(0))
    done = rows.map(counted, batched=True, num_proc=workers, load_from_cache_file=False)
    return {"seconds": time.perf_counter() - began, "tokens": sum(done["tokens"])}


def profiled(path: str, tokenizer: str, full: bool) -> dict[str, Any]:
    """Ours: from nothing to the facts that a plan stands on."""
    env, model = read_environment(), _model(Path(tokenizer))
    began = time.perf_counter()
    data = read_dataset((path,), model, env, system=None, progress=Silent(), full=full)
    return {"seconds": time.perf_counter() - began, "facts": _short(data)}


def _model(folder: Path) -> ModelFacts:
    env: Environment = read_environment()
    found = read_model("Qwen/Qwen2.5-7B-Instruct", env, {}, Silent())
    return replace(found, tokenizer_path=str(folder))


def _short(data: DataFacts) -> dict[str, Any]:
    shares = {name: getattr(data, name) for name in ("p50_tokens", "p90_tokens", "p95_tokens", "p99_tokens")}
    return {
        **shares,
        "rows": data.rows,
        "counted": data.counted_rows,
        "top": [[row.line, row.tokens, row.supervised_tokens] for row in data.costliest[:TOP]],
        "confidence": data.confidence,
    }


def timed(name: str, call: str, rows: int, cache: Path) -> Timed:
    """Runs one way in a process of its own and watches the memory of it and its children.

    ``cache``: kept between the ways of one run, so that the proof about a tokenizer is paid for once, by the first.
    """
    folder = Path(__file__).parent
    program = _PROGRAM.format(path=[str(folder), str(folder.parent)], call=f"say({call})")
    child = subprocess.Popen(
        (sys.executable, "-c", program),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(child, peak))
    watcher.start()
    assert child.stdout is not None
    answer = json.loads(child.stdout.read().splitlines()[-1])
    child.wait()
    watcher.join()
    found = Timed(name=name, rows=rows, seconds=answer["seconds"], peak_mb=peak[0], answer=answer)
    print(
        f"  {name:32} {rows:>9} rows {found.seconds:8.1f} s {1e6 * found.row_s:8.0f} us/row {peak[0]:6.0f} MB",
        flush=True,
    )
    return found


def say(answer: dict[str, Any]) -> None:
    """The last line of a child's output."""
    print("\n" + json.dumps(answer))


def _watch(child: subprocess.Popen[bytes], peak: list[float]) -> None:
    """Proportional memory (shared pages counted once) of a process and its children."""
    while child.poll() is None:
        total = 0
        with suppress(psutil.Error):
            mine = psutil.Process(child.pid)
            for process in (mine, *mine.children(recursive=True)):
                with suppress(psutil.Error):
                    total += process.memory_full_info().pss
        peak[0] = max(peak[0], total / 1e6)
        time.sleep(0.2)


# ---------------------------------------------------------------------------------------------------------- the exam


def main() -> int:
    """Prints a table and every miss. Returns how to exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--slow-rows", type=int, default=20_000, help="rows for the loop and datasets.map")
    parser.add_argument("--flat", type=float, default=0, metavar="GB", help="also compare peak memory at this size")
    parser.add_argument("--vocabulary", type=Path, default=packaged("dashscope", "qwen.tiktoken"))
    parser.add_argument("--folder", type=Path, help="keep the rows here")
    asked = parser.parse_args()
    if asked.vocabulary is None:
        parser.error("Qwen's vocabulary is not here: pip install --no-deps dashscope, or --vocabulary qwen.tiktoken")
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        misses = _exam(asked, folder)
    for miss in misses:
        print(f"MISS: {miss}")
    return 1 if misses else 0


def _exam(asked: argparse.Namespace, folder: Path) -> list[str]:
    tokenizer = folder / "qwen"
    if not (tokenizer / "tokenizer.json").is_file():
        qwen(asked.vocabulary, tokenizer)
    path = folder / f"rows-{asked.rows}.jsonl"
    if not path.is_file():
        make_rows(asked.rows, path, tokenizer)
    size, cores = path.stat().st_size / 1e6, len(os.sched_getaffinity(0))
    print(f"{asked.rows} rows, {size:.0f} MB, {cores} cores, load {os.getloadavg()[0]:.1f}")
    slow = min(asked.rows, asked.slow_rows)
    head = path.with_name("head.jsonl")  # or datasets.map would copy the whole file first
    with path.open("rb") as rows:
        head.write_bytes(b"".join(islice(rows, slow)))
    where, few = f"{str(path)!r}, {str(tokenizer)!r}", f"{str(head)!r}, {str(tokenizer)!r}"
    ways: list[tuple[str, str, int]] = [
        ("articles' loop", f"loop({few}, {slow})", slow),
        ("datasets.map", f"mapped({few}, {slow})", slow),
        ("autoswift profile --full", f"profiled({where}, True)", asked.rows),
        ("autoswift profile", f"profiled({where}, False)", asked.rows),
    ]
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)  # a dataset counted before is not counted again
    base, other, full, plan = (timed(*way, cache) for way in ways)
    print(f"  loads: {os.getloadavg()[0]:.1f}")
    return [*_slow(base, other, full, plan), *_wrong(full, plan), *_fat(asked, full, plan, folder, tokenizer)]


def _slow(base: Timed, other: Timed, full: Timed, plan: Timed) -> list[str]:
    misses = []
    for one, least in ((full, FULL_GAIN), (plan, PLAN_GAIN)):
        gain = base.row_s / one.row_s
        print(f"  {one.name}: {gain:.1f} x the loop, {other.row_s / one.row_s:.1f} x datasets.map")
        if gain < least:
            misses.append(f"{one.name} is {gain:.1f} x the loop, {least} wanted")
    if base.row_s / plan.row_s < PLAN_AIM:
        print(f"  (below the aim of {PLAN_AIM:.0f} x)")
    return misses


def _wrong(full: Timed, plan: Timed) -> list[str]:
    exact, quick = full.answer["facts"], plan.answer["facts"]
    print(f"  counted {quick['counted']} of {quick['rows']} rows; {quick['confidence']}")
    misses = [] if exact["top"] == quick["top"] else [f"the {TOP} costliest rows differ"]
    for name in ("p50_tokens", "p90_tokens", "p95_tokens", "p99_tokens"):
        off = abs(quick[name] / exact[name] - 1)
        print(f"  {name}: {exact[name]}, from the sample {quick[name]} ({100 * off:.2f} % off)")
        if off > OFF:
            misses.append(f"{name} is {100 * off:.1f} % off")
    return misses


def _fat(asked: argparse.Namespace, full: Timed, plan: Timed, folder: Path, tokenizer: Path) -> list[str]:
    misses = [f"{one.name} took {one.peak_mb:.0f} MB" for one in (full, plan) if one.peak_mb > MEMORY_MB]
    if not asked.flat:
        return misses
    peaks: list[float] = []
    source = folder / f"rows-{asked.rows}.jsonl"
    for size in (10**8, int(asked.flat * 1e9)):
        path = _sized(source, folder / f"flat-{size}.jsonl", size)
        one = timed(
            f"autoswift profile, {size / 1e9:.1f} GB",
            f"profiled({str(path)!r}, {str(tokenizer)!r}, False)",
            _count(path),
            folder / "cache",
        )
        peaks.append(one.peak_mb)
        path.unlink()
    if peaks[1] > FLAT_SHARE * peaks[0] or max(peaks) > MEMORY_MB:
        misses.append(f"memory is not flat: {peaks[0]:.0f} MB at 0.1 GB, {peaks[1]:.0f} MB at {asked.flat} GB")
    return misses


def _sized(source: Path, path: Path, size: int) -> Path:
    """The rows again and again up to a size."""
    with path.open("wb") as out:
        while out.tell() < size:
            with source.open("rb") as rows:
                for line in rows:
                    out.write(line)
                    if out.tell() >= size:
                        break
    return path


def _count(path: Path) -> int:
    reader: Callable[[], bytes]
    with path.open("rb") as stream:
        reader = lambda: stream.read(1 << 22)  # noqa: E731
        return sum(chunk.count(b"\n") for chunk in iter(reader, b""))


if __name__ == "__main__":
    sys.exit(main())
