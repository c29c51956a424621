"""Local privacy as it is deployed: `report` on the user's device, `Server` for those who collect (paper 4).

`Client` takes part in a service that `clipwise serve` runs; `audit` attacks single reports.
"""

from clipwise.local.audit import ReportAudit, audit
from clipwise.local.client import BudgetSpentError, Client, Model, NoAnswerError, Receipt, TurnError
from clipwise.local.ledger import LedgerError
from clipwise.local.report import report
from clipwise.local.server import RefusalError, Server, State, Turn, replay
from clipwise.local.statement import LocalStatement

__all__ = [
    "BudgetSpentError",
    "Client",
    "LedgerError",
    "LocalStatement",
    "Model",
    "NoAnswerError",
    "Receipt",
    "RefusalError",
    "ReportAudit",
    "Server",
    "State",
    "Turn",
    "TurnError",
    "audit",
    "replay",
    "report",
]
