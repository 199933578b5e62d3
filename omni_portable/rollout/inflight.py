"""Which requests are in flight, and which of them were aborted. Engines guard it with their own lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from omni_portable.contracts.errors import LifecycleError

if TYPE_CHECKING:
    from omni_portable.contracts.tokens import TokenPrefix


class Outcome(str, Enum):
    """A request is pending until it finishes or is aborted; both are final."""

    PENDING = "pending"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass
class Ticket:
    """One accepted request. A resubmitted request id gets a new ticket, so an old one can never be revived.

    Args:
        kept: what had been drawn of an aborted response.
    """

    request_id: str
    outcome: Outcome = Outcome.PENDING
    kept: TokenPrefix | None = None


class InFlight:
    """Accepted requests that are neither finished nor aborted."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def open(self, request_ids: Sequence[str]) -> list[Ticket]:
        """Accept requests, all or none of them; one ticket each, in order.

        Raises:
            LifecycleError: an id occurs twice or is in flight already.
        """
        counts = Counter(request_ids)
        repeated = [name for name, count in counts.items() if count > 1 or name in self._tickets]
        if repeated:
            raise LifecycleError(
                f"request ids {sorted(repeated)} are in flight already or were given twice",
                remedy="give every request an id of its own",
            )
        tickets = [Ticket(name) for name in request_ids]
        self._tickets.update((ticket.request_id, ticket) for ticket in tickets)
        return tickets

    def finish(self, ticket: Ticket) -> None:
        """A pending request has its result."""
        self._settle(ticket, Outcome.FINISHED)

    def abort(self, request_ids: Iterable[str] | None = None) -> tuple[str, ...]:
        """Abort the named requests, or all; returns the ids that were in flight (others finished before)."""
        wanted = list(self._tickets) if request_ids is None else list(dict.fromkeys(request_ids))
        aborted = [self._tickets[name] for name in wanted if name in self._tickets]
        for ticket in aborted:
            self._settle(ticket, Outcome.ABORTED)
        return tuple(ticket.request_id for ticket in aborted)

    def close(self, tickets: Iterable[Ticket]) -> None:
        """Let go of tickets whose caller is gone (an exception or a cancelled task)."""
        for ticket in tickets:
            if ticket.outcome is Outcome.PENDING:
                self._settle(ticket, Outcome.ABORTED)

    def _settle(self, ticket: Ticket, outcome: Outcome) -> None:
        if ticket.outcome is Outcome.PENDING:
            ticket.outcome = outcome
            del self._tickets[ticket.request_id]
