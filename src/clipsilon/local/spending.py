"""What a device has spent, remembered before a report leaves: in memory, or in a file that survives a restart.

The file is replaced as a whole and synced to disk, under a lock that threads and processes share. It holds no record,
but the reports that are still to be answered. On systems without flock, processes do not exclude each other. A digest
shows numbers that were changed by accident or by hand; whoever computes it anew is not noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from clipsilon._core import checks
from clipsilon._core.storage import write_atomically

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_FORMAT = "clipsilon-device-2"


def compose(*budgets: float) -> float:
    """Return √(Σμ²), not below the real number: however small, no report is free."""
    spent = [float(mu) for mu in budgets if mu]
    if len(spent) < 2:
        return sum(spent)
    root = math.hypot(*spent)
    while not _covers(root, spent):
        root = math.nextafter(root, math.inf)
    return root


def _covers(root: float, budgets: Iterable[float]) -> bool:
    """Return whether root² ≥ Σμ², as real numbers."""
    ratios = [number.as_integer_ratio() for number in (root, *budgets)]
    most = max(below for _, below in ratios)  # all are powers of two
    square, *squares = ((above * (most // below)) ** 2 for above, below in ratios)
    return square >= sum(squares)


@dataclass
class Account:
    """What one user has spent.

    Parameters
    ----------
    spent : float
        √(Σμ²) of all reports that may have left the device.
    lost : dict
        For each service, by its address: √(Σμ²) of those that are in no ledger, since the last one that is.
    pending : str
        The report that is still to be answered, as it was or will be sent; empty if there is none.
    url : str
        Where it goes.
    mu : float
        √(Σμ²) of it and of what this service lost before it.
    """

    spent: float = 0.0
    lost: dict[str, float] = field(default_factory=dict)
    pending: str = ""
    url: str = ""
    mu: float = 0.0

    def charge(self, mu: float, body: str, url: str) -> None:
        """Spend μ on a report that is about to leave.

        Parameters
        ----------
        mu : float
            The budget of the report.
        body : str
            What will be sent.
        url : str
            Where to.
        """
        self.spent, self.mu = compose(self.spent, mu), compose(self.lost.get(url, 0.0), mu)
        self.pending, self.url = body, url

    def settle(self, body: str, used: bool) -> None:
        """Note that a report was answered: its budget is in the ledger, or lost."""
        if self.pending == body:
            self.lost.pop(self.url, None)
            if not used:
                self.lost[self.url] = self.mu
            self.pending, self.url, self.mu = "", "", 0.0


class Spending:
    """The accounts of a device's users.

    Parameters
    ----------
    path : Path, optional
        The file; by default they are kept in memory.
    """

    def __init__(self, path: Path | None = None):
        self._path = None if path is None else path.resolve()  # links, and a change of folder, lead to the same file
        self._lock, self._content = Lock(), b""  # what was read or written last
        self._accounts: dict[str, Account] = {}
        if path is not None:
            with self._locked():
                self._read()  # a wrong file is noticed before anything is spent

    @contextmanager
    def account(self, user: str) -> Iterator[Account]:
        """Give the account of a user to the block; what it changes is on disk when it ends, unless it raises."""
        key = unicodedata.normalize("NFC", user)
        with self._lock, self._locked() as handle:
            self._read()
            before = self._accounts.get(key, Account())
            account = Account(**asdict(before))
            yield account
            if account != before:
                self._write({**self._accounts, key: account}, handle)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock, and give its handle to the block."""
        if self._path is None or fcntl is None:
            yield -1
            return
        while True:
            handle = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if self._is_current(handle):  # otherwise it was removed while we waited
                    yield handle
                    return
            finally:
                os.close(handle)  # releases the lock

    @property
    def _lock_path(self) -> Path:
        return Path(f"{self._path}.lock")

    def _is_current(self, handle: int) -> bool:
        """Return whether the lock that we hold is the one that others will try."""
        try:
            return handle < 0 or os.path.samestat(os.fstat(handle), self._lock_path.stat())
        except FileNotFoundError:
            return False

    def _read(self) -> None:
        """Read the accounts; raise ValueError if they are damaged, or older than what this object has seen."""
        if self._path is None:
            return
        content = self._on_disk()
        if self._content and not content:
            raise ValueError(f"spending must not be removed while it is used, got {self._path}, which is missing.")
        try:
            accounts = _parsed(content) if content else {}
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(
                f"spending must be a file of this device, got {self._path}, which is not one or damaged."
            ) from problem
        fallen = [user for user, one in self._accounts.items() if accounts.get(user, Account()).spent < one.spent]
        if fallen:
            raise ValueError(
                f"spending must not be set back while it is used, got {self._path}, where user {fallen[0]!r} has spent "
                "less than before."
            )
        self._accounts, self._content = accounts, content

    def _on_disk(self) -> bytes:
        assert self._path is not None
        try:
            return self._path.read_bytes() or b"\n"  # an empty file is damaged, not missing
        except FileNotFoundError:
            return b""

    def _write(self, accounts: dict[str, Account], handle: int) -> None:
        if self._path is not None:
            if not self._is_current(handle) or self._on_disk() != self._content:
                raise ValueError(
                    f"spending must not be changed or unlocked by others while it is used, got {self._path}."
                )
            content = _written(accounts)
            write_atomically(self._path, lambda file: file.write(content))
            self._content = content
        self._accounts = accounts


def _written(accounts: dict[str, Account]) -> bytes:
    users = {user: asdict(account) for user, account in accounts.items()}
    return json.dumps({"format": _FORMAT, "users": users, "digest": _digest(users)}).encode()


def _parsed(content: bytes) -> dict[str, Account]:
    """Return the accounts of a file; raise an error, of one kind or another, if it is not one."""
    found = json.loads(content)
    if found["format"] != _FORMAT or found["digest"] != _digest(found["users"]):
        raise ValueError
    accounts = {user: Account(**stored) for user, stored in found["users"].items()}
    for account in accounts.values():
        for number in (account.spent, account.mu, *account.lost.values()):
            checks.nonnegative("spent", number)
    return accounts


def _digest(users: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(users, sort_keys=True).encode()).hexdigest()
