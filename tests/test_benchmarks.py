"""What `make bench-http` measures with: its texts, its load, its arithmetic, its peers' files."""

import ast
import asyncio
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch
from tokenizers import Tokenizer

from model import kernels
from model.kernels import PLAIN
from service.files.weights import BUNDLED_MODEL, locate_model

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from served import load, machine, servers, table, texts  # noqa: E402  a script's neighbours
from served.servers import PEERS, SERVERS  # noqa: E402

SCRIPTS = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "benchmarks" / "served").glob("*.py")]
BODY = b"{}"
FOLDER = locate_model(BUNDLED_MODEL).folder


@pytest.fixture(scope="module")
def sizes() -> dict[str, int]:
    """The words with their tokens."""
    return texts.words_with_tokens(texts.make_counter(FOLDER))


@pytest.mark.parametrize(
    ("kind", "least", "most"), [("short", 8, 24), ("mixed", 4, 256), ("long", 512, 512)]
)
def test_no_text_repeats_and_each_has_its_length(
    sizes: dict[str, int], kind: str, least: int, most: int
) -> None:
    """As the model's own tokenizer counts, special tokens included."""
    made = texts.Texts(sizes, random.Random(0))
    every = [getattr(made, kind)() for _ in range(20 if kind == "long" else 500)]

    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    lengths = [len(each.ids) for each in tokenizer.encode_batch(every)]

    assert len(set(every)) == len(every)
    assert least <= min(lengths) and max(lengths) <= most
    assert len(set(lengths)) > 10 or least == most


def test_where_few_texts_are_possible_none_repeats_either() -> None:
    """Two words make four texts of two: all four come, in some order."""
    made = texts.Texts({"yes": 1, "no": 1}, random.Random(0))

    assert len({made.unseen(2 + texts.SPECIAL) for _ in range(4)}) == 4


def test_every_server_gets_the_same_texts(sizes: dict[str, int]) -> None:
    """The same seed, the same requests; another round, others."""
    first, again, other = (
        [each for _ in range(5) for each in texts.draw_mix(texts.Texts(sizes, random.Random(seed)))]
        for seed in ("0", "0", "1")
    )

    assert first == again
    assert first != other


def turn(number: int, server: str, **figures: Any) -> table.Turn:
    """A turn of which only some figures matter."""
    plain: dict[str, Any] = {"sentences": 1.0, "p50": 1.0, "p99": 1.0, "cpu_ms": 1.0}
    plain |= {"peak_mib": 1.0, "cosine": 1.0, "workload": "a workload"} | figures
    return table.Turn(round=number, server=server, **plain)


def test_a_ratio_is_the_median_of_the_rounds_and_not_of_the_medians() -> None:
    """In each round ours was twice as fast, while the machine's speed went up and down."""
    turns = [turn(number, "ours", sentences=2.0 * speed) for number, speed in enumerate((1, 7, 3))]
    turns += [turn(number, "peer", sentences=speed) for number, speed in enumerate((1.0, 7.0, 3.0))]
    turns += [turn(3, "peer", sentences=1000.0)]  # ours has no such round

    ours, peer = table.summarise(turns, "ours", "open loop")

    assert (ours.ratio, peer.ratio) == (1.0, 2.0)
    assert (peer.ratio_least, peer.ratio_most) == (2.0, 2.0)
    assert (peer.sentences, peer.least, peer.most) == (5.0, 1.0, 1000.0)


def test_the_open_loop_is_compared_by_the_time_of_an_answer() -> None:
    """All servers answer as many there as they are sent."""
    turns = [turn(0, "ours", p50=2.0), turn(0, "peer", p50=7.0, missing=3)]

    _, peer = table.summarise(turns, "ours", "a workload")

    assert peer.ratio == 3.5
    assert table.format_agreement(peer) == "same, 3 missing"


def test_the_ratios_alone_have_a_column_for_each_workload() -> None:
    """Medians with least and most; a dash where a server had no such turn."""
    turns = [turn(0, "ours", sentences=6.0), turn(1, "ours", sentences=6.0)]
    turns += [turn(0, "peer", sentences=3.0), turn(1, "peer", sentences=2.0)]
    turns += [turn(0, "ours", workload="another"), turn(0, "third", workload="another")]

    lines = table.format_ratios(table.summarise(turns, "ours", "open loop"), "ours").splitlines()

    assert lines[0] == "| ours to | a workload | another |"
    assert lines[2:] == [
        "| peer | 2.50 (2.00 to 3.00) | - |",
        "| third | - | 1.00 |",
    ]


def test_other_vectors_are_told_by_their_cosine() -> None:
    """A fast server that rounds or pools otherwise is no faster server."""
    turns = [turn(0, "ours"), turn(0, "peer", cosine=0.99), turn(1, "peer", cosine=1.0)]

    _, peer = table.summarise(turns, "ours", "open loop")

    assert "| cosine 0.9900 |" in table.format_row(peer)


def test_a_row_has_three_quantiles_of_the_time() -> None:
    """Medians over the rounds; a run from before the 90th was told has a dash."""
    turns = [turn(n, "ours", p50=2.0, p90=3.0 + n, p99=5.0) for n in range(3)] + [turn(0, "old")]

    ours, old = map(table.format_row, table.summarise(turns, "ours", "open loop"))

    assert "| 2.0 | 4.0 | 5.0 |" in ours and "| 1.0 | - | 1.0 |" in old


def test_answers_are_compared_text_by_text_in_either_api() -> None:
    """One vector of three that points elsewhere is enough; a vector too few is no answer."""
    ours = {0: b"[[1, 0], [0, 1], [3, 4]]"}
    other = {0: b'{"data": [{"embedding": [2, 0]}, {"embedding": [1, 1]}, {"embedding": [3, 4]}]}'}

    assert table.smallest_cosine(ours, ours) == pytest.approx(1)
    assert table.smallest_cosine(other, ours) == pytest.approx(0.5**0.5)
    assert table.smallest_cosine({0: b"[[1, 0]]"}, ours) == 0
    assert table.smallest_cosine({7: b"[[1, 0]]"}, ours) is None


def test_the_99th_percentile_of_a_hundred_is_the_last_but_one() -> None:
    """By nearest rank."""
    values = [float(value) for value in range(1, 101)]

    assert (table.quantile(values, 0.99), table.quantile(values, 0.5)) == (99.0, 50.0)


class Peer(asyncio.Protocol):
    """A server that answers each request in two pieces, or refuses."""

    def __init__(self, status: str, received: list[bytes]) -> None:
        self.status, self.received, self.buffer = status, received, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.buffer.endswith(load.HEADS + BODY):
            self.received.append(self.buffer)
            self.buffer = b""
            self.transport.write(f"HTTP/1.1 {self.status}\r\nContent-Length: 5\r\n\r\n[[1".encode())
            asyncio.get_running_loop().call_later(0.001, self.transport.write, b"]]")


@asynccontextmanager
async def answering(status: str) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Such a server's port, and what it received."""
    received: list[bytes] = []
    make = partial(Peer, status, received)
    async with await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], received


def numbered() -> Iterator[load.Request]:
    """Requests of two texts each."""
    return load.prepare_requests(lambda: (2, load.write_request("/embed", BODY)), 1)


@pytest.mark.parametrize(
    "make",
    [partial(load.Closed, connections=3), partial(load.Open, rate=200, seed="0")],
    ids=["closed", "open"],
)
async def test_the_load_counts_every_answer_and_keeps_the_first(
    make: Callable[[int, Iterator[load.Request]], load.Load],
) -> None:
    """Over real connections; none is counted that was not sent, or by half."""
    async with answering("200 OK") as (port, received):
        answers = await make(port, numbered()).run(0.1)

    assert len(received) == len(answers.milliseconds) > load.KEPT
    assert answers.sentences == 2 * len(received)
    assert answers.kept == dict.fromkeys(range(load.KEPT), b"[[1]]")
    assert answers.missing == 0
    assert all(0 < each for each in (answers.seconds, *answers.milliseconds))


def test_a_request_counts_by_the_part_of_its_time_in_the_window() -> None:
    """Half of the first, the second, and nothing of one that came later; two seconds in all."""
    spans = [(0.0, 2.0, 4), (1.5, 2.5, 6), (3.0, 5.0, 8)]

    assert load.within(spans, 1.0, 3.0) == pytest.approx((2 + 6) / 2)


async def test_what_comes_before_the_window_is_sent_and_not_timed() -> None:
    """Its answers count as answered; the window's rate is that of the whole, as nothing changes."""
    async with answering("200 OK") as (port, received):
        answers = await load.Closed(port, numbered(), connections=3).run(0.2, lead=0.1)

    assert answers.seconds >= 0.3
    assert 0 < len(answers.milliseconds) < len(received)
    assert answers.sentences == 2 * len(received)
    assert answers.rate == pytest.approx(answers.sentences / answers.seconds, rel=0.5)


async def test_a_refusal_ends_the_turn() -> None:
    """A server that refuses quickly is not measured."""
    async with answering("429 Too Many Requests") as (port, _):
        with pytest.raises(load.Failed, match="429"):
            await load.Closed(port, numbered(), connections=2).run(0.1)


def test_every_peer_is_pinned_and_no_package_registry_is_named() -> None:
    """Each has its file and, at exact versions, all that it needs."""
    peers = {server for server in SERVERS.values() if server.file}

    for peer in peers:
        lines = (PEERS / f"{peer.needs}.txt").read_text().splitlines()
        assert lines and all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in lines)
        assert (PEERS / f"{peer.file}.py").exists()
    assert {peer.needs for peer in peers} == {path.stem for path in PEERS.glob("*.txt")}


def test_each_server_takes_the_workloads_in_which_it_differs() -> None:
    """The slowest two no open loop; the others all."""
    left = {
        name: [load for load, each in texts.WORKLOADS.items() if not server.is_measured_with(each)]
        for name, server in SERVERS.items()
    }

    assert left.pop("fastapi") == left.pop("litserve") == ["poisson"]
    assert {"headlight", "onnx", "openvino"} < set(left) and not any(left.values())


def test_an_environment_is_kept_until_its_list_or_torch_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is made anew; one that could not be made is tried again."""
    ran = list[list[str]]()
    for name, value in (("ROOT", tmp_path), ("PEERS", tmp_path), ("BUILT", tmp_path / "built")):
        monkeypatch.setattr(servers, name, value)
    peer = servers.Server("a peer", "a_file", "some")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        if "venv" in command:
            shutil.rmtree(peer.home, ignore_errors=True)
            peer.home.mkdir()
        ran.append(command)
        return subprocess.CompletedProcess(command, needs.read_text() == "none==0")

    def made(pins: str, torch: str) -> bool:
        before = len(ran)
        needs.write_text(pins)
        lock.write_text(torch)
        servers.install(peer, "")
        return len(ran) > before

    monkeypatch.setattr(subprocess, "run", run)
    needs, lock = tmp_path / "some.txt", tmp_path / "deploy" / "torch.lock"
    for folder in (lock.parent, tmp_path / "built"):
        folder.mkdir()

    tried = [made("a==1", "1"), made("a==1", "1"), made("a==2", "1"), made("a==2", "2")]
    with pytest.raises(servers.PeerAbsent):
        made("none==0", "2")

    assert tried == [True, False, True, True]
    assert made("a==2", "2")


def test_a_result_names_its_processor_and_what_the_peers_were() -> None:
    """As the kernel and the lists have it."""
    cpu = Path("/proc/cpuinfo").read_text()
    told = machine.describe_processor()

    assert told["cores"] == len(os.sched_getaffinity(0))
    assert told["name"] in cpu or "model name" not in cpu
    assert all(re.search(rf"\b{flag}\b", cpu) for flag in told["isa"])
    assert len(told["isa"]) == sum(bool(re.search(rf"\b{flag}\b", cpu)) for flag in machine.ISA)
    assert machine.package_versions()["numpy"] == numpy.__version__
    pins = machine.pinned_versions([PEERS / "infinity.txt"], ["infinity-emb", "absent"])
    assert pins == {"infinity": {"infinity-emb": "0.0.78"}}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_finds_what_it_imports(path: Path) -> None:
    """Its neighbours too; peers run in environments of their own."""
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
        for module in modules:
            assert importlib.util.find_spec(module.partition(".")[0]), module
            if module.startswith("served."):
                assert importlib.util.find_spec(module), module


def test_what_is_run_first_on_a_gpu_runs_to_its_end_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tiny and on the processor: no limit is passed, vectors are transformers', rows are whole."""
    import gpu  # transformers takes seconds

    monkeypatch.setattr(sys, "argv", ["gpu.py", "--rehearse", "--dtype", "float32"])
    gpu.main()

    agreement, speed = (
        [line for line in part.splitlines() if line.startswith("|")]
        for part in capsys.readouterr().out.split("Speed in")
    )
    assert [len(agreement), len(speed)] == [2 + 3, 2 + 2]
    for part in (agreement, speed):
        assert len({line.count("|") for line in part}) == 1
    assert all(line.endswith("| - |") for line in agreement[2:])
    assert all(line.endswith("| 1.00000 |") for line in speed[2:])


def test_what_is_run_first_on_a_gpu_tells_what_is_over_a_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The negative control: kernels that multiply scores by something else."""
    import gpu

    def attend(q: Any, k: Any, v: Any, scale: float, bias: Any = None) -> Any:
        return PLAIN.attend(q, k, v, 3 * scale, bias)

    wrong = replace(PLAIN, name="wrong", attend=attend)
    monkeypatch.setattr(kernels, "choose_kernels", lambda *given: wrong)

    with torch.inference_mode():
        assert not gpu.print_agreement(gpu.TINY, torch.device("cpu"))

    assert "vectors, answers, maps |" in capsys.readouterr().out
