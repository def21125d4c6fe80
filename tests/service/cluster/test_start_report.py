"""A start that gets nowhere says so."""

import queue
import threading

import pytest

from service.cluster import start_report

TRACE = "\x1b[36mray::Encoder\x1b[39m\n  File 'a.py', line 1\n"


def test_what_is_waited_for_is_said_again_and_again_and_no_more_after_it_came() -> None:
    """Each time as it then is; by a thread of its own, which a silent cause holds up alone."""
    said: queue.Queue[str] = queue.Queue()
    causes = iter(["first", "second"])
    asked, never = threading.Event(), threading.Event()

    def cause() -> str:
        for sentence in causes:
            return sentence
        asked.set()
        never.wait()
        return "too late"

    with start_report.report_progress(said.put, cause, period=0.01):
        lines = [said.get(timeout=5), said.get(timeout=5)]
        assert asked.wait(5)
    never.set()

    assert lines == ["waiting for 0 s: first", "waiting for 0 s: second"]
    assert said.empty()


def test_a_cause_that_fails_when_the_wait_is_over_says_nothing() -> None:
    """Ray has gone by then, and a stack of its would come after the one line that says why."""
    asked, over = threading.Event(), threading.Event()

    def cause() -> str:
        asked.set()
        assert over.wait(5)
        raise RuntimeError("Ray has been shut down")

    with start_report.report_progress(lambda line: None, cause, period=0.01):
        assert asked.wait(5)
    over.set()

    for thread in threading.enumerate():
        if thread.name == "progress":
            thread.join(5)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{TRACE}service.proof.machine.Unservable: max_tokens 513", "max_tokens 513"),
        (f"{TRACE}model.errors.CheckpointError: no folder: x", "no folder: x"),
        (f"{TRACE}ValueError: x", "x"),
        (f"{TRACE}file:/nowhere: No such file", "file:/nowhere: No such file"),
        ("", "no reason given"),
    ],
)
def test_a_stack_is_told_by_what_its_last_line_says(text: str, line: str) -> None:
    """Without colours and without the class, whatever that is called."""
    assert start_report.last_line(text) == line
