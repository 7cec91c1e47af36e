"""Exactly-once effects for services on PostgreSQL.

Synchronous names are here, asynchronous ones of the same spelling in `pgonce.aio`.
"""

from ._intent import Done, Intent
from ._sync import Command, Joined, Tx, accept, accept_batch, execute, join, once, publish
from ._sync_lease import Lease, LeaseCommand, lease
from .errors import (
    Busy,
    Conflict,
    DatabaseError,
    Disconnected,
    Error,
    Failure,
    Fenced,
    Gone,
    Invalid,
    LostRace,
    NotInTransaction,
    PermanentFailure,
    TransientFailure,
    Uncertain,
)
from .fingerprint import canonical, fingerprint, fingerprint_of_bytes
from .keys import BadKey, derived_key, lint_key, new_key, resource_id
from .retry import Class, Policy, classify, transact

__all__ = [
    "BadKey",
    "Busy",
    "Class",
    "Command",
    "Conflict",
    "DatabaseError",
    "Disconnected",
    "Done",
    "Error",
    "Failure",
    "Fenced",
    "Gone",
    "Intent",
    "Invalid",
    "Joined",
    "Lease",
    "LeaseCommand",
    "LostRace",
    "NotInTransaction",
    "PermanentFailure",
    "Policy",
    "TransientFailure",
    "Tx",
    "Uncertain",
    "accept",
    "accept_batch",
    "canonical",
    "classify",
    "derived_key",
    "execute",
    "fingerprint",
    "fingerprint_of_bytes",
    "join",
    "lease",
    "lint_key",
    "new_key",
    "once",
    "publish",
    "resource_id",
    "transact",
]
