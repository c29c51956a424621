"""The record stays on the device: spies check which code reads it, what is sent, and what is stored."""

import importlib
import inspect
import json
import pkgutil
import struct
import sys
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import clipsilon as cs
from clipsilon.local import Client, service

LOSS = cs.losses.HuberRegression()
FEATURES, LABEL = (0.7390851332151607, -1.2020569031595942, 0.9159655941772190), 2.685452001065306
DEVICE = str(Path(cs.local.__file__).with_name("report.py"))


class Spy(tuple):
    """A record that keeps track of the files that read it."""

    def __iter__(self):
        caller = sys._getframe(1).f_code.co_filename
        SEEN.append(caller)
        return super().__iter__()

    def __getitem__(self, place):
        SEEN.append(sys._getframe(1).f_code.co_filename)
        return super().__getitem__(place)


SEEN = []


def forms(number):
    """Return the ways in which a number could be written."""
    return [struct.pack("<d", number), struct.pack(">d", number), repr(number)[:12].encode()]


def holds(content, numbers):
    return any(form in content for number in numbers for form in forms(number))


@pytest.fixture
def wire(monkeypatch):
    """Collect all bytes that are sent over HTTP."""
    sent, send = [], HTTPConnection.send

    def spied(self, data):
        sent.append(bytes(data))
        return send(self, data)

    monkeypatch.setattr(HTTPConnection, "send", spied)
    return sent


def test_only_the_device_touches_a_record(tmp_path, wire):
    """From the client through the service to the disk."""
    SEEN.clear()
    path = tmp_path / "ledger.db"
    with cs.local.Server(path, start=np.zeros(4), step=cs.schedules.Constant(0.1)) as server:
        with service.running(server) as url:
            Client(url).take_part("ann", Spy((FEATURES, LABEL)), LOSS, mu=4.0)
        assert server.version == 1
        stored = [line.encode() for line in server._ledger._database._connection.iterdump()]
    assert set(SEEN) == {DEVICE}
    assert any(b"POST /report" in piece for piece in wire)
    secret = (*FEATURES, LABEL)
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert files
    for content in (*wire, *stored, *files):
        assert not holds(content, secret)
    # The search works: it finds the noisy report, and would find a record that had been sent.
    report = json.loads(next(piece for piece in wire if piece.startswith(b'{"user"') and b"report" in piece))["report"]
    assert any(holds(content, report) for content in files)
    assert holds(json.dumps({"record": [FEATURES, LABEL]}).encode(), secret)


def test_nothing_but_the_device_needs_a_record(tmp_path, monkeypatch):
    """With `report` and `prepare` replaced, any object can take the place of a record."""
    module = importlib.import_module("clipsilon.local.client")
    monkeypatch.setattr(module, "prepare", lambda *_: SimpleNamespace(dimension=4))
    monkeypatch.setattr(module, "report", lambda *_: np.ones(4))
    with cs.local.Server(tmp_path / "l", start=np.zeros(4), step=cs.schedules.Constant(0.1)) as server:
        with service.running(server) as url:
            Client(url).take_part("ann", object(), LOSS, mu=4.0)
        assert server.theta.tolist() == [-0.1] * 4


def test_no_function_of_the_server_takes_a_record():
    for name in (
        "ledger",
        "ledger.base",
        "ledger.stored",
        "ledger.chain",
        "rounds",
        "server",
        "service",
        "statement",
        "tickets",
    ):
        module = importlib.import_module(f"clipsilon.local.{name}")
        for _, thing in inspect.getmembers(module, lambda one: inspect.isfunction(one) or inspect.isclass(one)):
            if thing.__module__ != module.__name__:
                continue
            members = (
                [thing]
                if inspect.isfunction(thing)
                else [one for _, one in inspect.getmembers(thing, inspect.isfunction)]
            )
            for member in members:
                taken = set(inspect.signature(member).parameters)
                assert not taken & {"record", "records", "features", "label", "labels"}, member
    assert {module.name for module in pkgutil.iter_modules(cs.local.__path__)} >= {"ledger", "server", "service"}
