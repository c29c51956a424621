"""The writer of a service: which reports it writes together."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from clipsilon.local import writer as writer_module
from clipsilon.local.ledger import LedgerError
from clipsilon.local.server import Accepted
from clipsilon.local.writer import Writer


class Recorder:
    """A server that remembers the groups. It begins to write when `turn` is set; with `problem`, it fails."""

    def __init__(self):
        self.groups, self.turn, self.problem = [], Event(), None
        self.turn.set()

    def apply_checked(self, take):
        assert self.turn.wait(60)
        if self.problem is not None:
            raise self.problem
        self.groups.append(take())
        return [Accepted(number, 0) for number in self.groups[-1]]


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_what_comes_in_before_the_turn_to_write_is_written_with_it(thread):
    server = Recorder()

    async def work():
        writer = Writer(server, lambda result: result, thread)
        server.turn.clear()
        first, writing = writer.add(1), asyncio.create_task(writer.write())
        await asyncio.sleep(0)
        second = writer.add(2)
        server.turn.set()
        await writing
        assert (first.result(), second.result()) == (Accepted(1, 0), Accepted(2, 0))
        again = asyncio.create_task(writer.write())
        await asyncio.sleep(0.01)
        writer.add(3)  # nothing was written before
        await again

    asyncio.run(work())
    assert server.groups == [[1, 2], [3]]


def test_what_comes_in_during_a_write_is_written_by_the_next(thread, monkeypatch):
    monkeypatch.setattr(writer_module, "_MOST_TOGETHER", 2)
    server = Recorder()

    async def work():
        writer = Writer(server, lambda result: result, thread)
        answers = [writer.add(number) for number in (1, 2, 3)]
        await writer.write()
        assert [one.done() for one in answers] == [True, True, False]
        await writer.write()
        assert answers[2].result() == Accepted(3, 0)

    asyncio.run(work())
    assert server.groups == [[1, 2], [3]]


def test_after_a_failure_all_that_wait_are_told(thread):
    server = Recorder()
    server.problem = LedgerError("the ledger is closed.")

    async def work():
        writer = Writer(server, lambda result: result, thread)
        answers = [writer.add(1), writer.add(2)]
        await writer.write()
        assert [one.result() for one in answers] == [server.problem] * 2
        server.problem = None
        again = writer.add(3)
        await writer.write()
        assert again.result() == Accepted(3, 0)

    asyncio.run(work())
    assert server.groups == [[3]]
