"""Two processes charge a budget file and are killed at random, until both have tried all their charges; for a test."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import clipsilon as cs
from clipsilon.privacy.statement import point_statement

CHARGES = 100


def work(path, name, told):
    """Make all charges of one process, as a restarted program would: those whose answer it has not seen.

    A charge that was confirmed and then lost is not made again, and so is noticed.
    """
    budget, seen = cs.Budget(path), set(os.pread(told, 10**6, 0).decode().split("\n"))
    for number in range(CHARGES):
        key = f"{name}{number}"
        if key in seen:
            continue
        try:
            budget.charge(point_statement("thing", 100, 0.01, 1e-9, "zero-out"), key=key)
        except cs.BudgetError as error:
            if "would pass the limit" not in str(error):
                raise
        else:
            os.write(told, f"{key}\n".encode())
    os.write(told, f"{name} is done\n".encode())


def start(path, name, told):
    """Fork a process, which leaves without a trace."""
    pid = os.fork()
    if pid == 0:
        try:
            work(path, name, told)
        finally:
            os._exit(0)
    return pid


def main(path, limit):
    """Kill processes until both are done, and print what they were told."""
    cs.Budget(path, epsilon=float(limit), delta=1e-5)
    rng = random.Random(0)
    notes = Path(f"{path}.told")
    told = os.open(notes, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    running, kills = {name: start(path, name, told) for name in "ab"}, 0
    lines = []
    while running:
        time.sleep(rng.uniform(0.01, 0.1))
        lines = notes.read_text("utf-8").splitlines()
        for name, pid in list(running.items()):
            if f"{name} is done" in lines and kills >= 10:
                os.waitpid(pid, 0)
                del running[name]
            elif kills < 40 and rng.random() < 0.5:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                running[name], kills = start(path, name, told), kills + 1
    notes.unlink()
    print(json.dumps({"kills": kills, "charged": [line for line in lines if " " not in line]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
