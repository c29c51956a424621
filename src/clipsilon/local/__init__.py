"""Local privacy in deployment: `report` on the user's device, `Server` for the collector (paper 4).

`Client` takes part in a service that `clipsilon serve` runs; `audit` attacks single reports. `simulate` tells how far a
model gets with so many devices.
"""

from clipsilon.local.audit import ReportAudit, audit
from clipsilon.local.client import BudgetSpentError, Client, Model, NoAnswerError, Receipt, TurnError
from clipsilon.local.ledger import LedgerError
from clipsilon.local.report import report
from clipsilon.local.server import RefusalError, Server, State, Turn, replay
from clipsilon.local.simulation import Averaging, Crowd, Simulation, simulate
from clipsilon.local.statement import LocalStatement

__all__ = [
    "Averaging",
    "BudgetSpentError",
    "Client",
    "Crowd",
    "LedgerError",
    "LocalStatement",
    "Model",
    "NoAnswerError",
    "Receipt",
    "RefusalError",
    "ReportAudit",
    "Server",
    "Simulation",
    "State",
    "Turn",
    "TurnError",
    "audit",
    "replay",
    "report",
    "simulate",
]
