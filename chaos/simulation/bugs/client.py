"""Bugs of the client library: outbox, counters, cursors, and what it takes for certain.

What must not live here: what finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.simulation.bugs.registry import SEEDS_RARE_MAX, Patches, bug
from flotilla_client import AsyncClient, aio, joining
from flotilla_client import state as state_module
from flotilla_client.errors import FlotillaError, NoSubscribers
from flotilla_client.joining import Call, Joined, Piece, _BatchUnderWay, _Line
from flotilla_client.observer import Operation
from flotilla_client.operations import Operations, PutResult, Steps
from flotilla_client.reading import Delivery, Reader, Readers
from flotilla_client.retry import Action, Done, Exchange
from flotilla_client.state import State, Statement

_silent: Final = Exchange.silent
_get: Final = Operations.get
_complete: Final = Operations.complete
_take_out: Final = Joined._take_out
_begin: Final = Joined._begin
_answered: Final = Joined._answered
_end: Final = Call.end
_results: Final = Call.results
_joined: Final = joining._joined
_publish: Final = AsyncClient._publish
_raise_cursor: Final = State.raise_cursor
_commit: Final = State._commit


@bug("silence proves nothing", {"aborted_read", "content", "definite", "subscription"})
def silence_counts_as_refusal(patches: Patches) -> None:
    """Take an attempt that nobody answered for one that did not happen."""

    def silent(exchange: Exchange, now_ms: float, cause: str = "no answer") -> list[Action]:
        exchange._unsettled.discard(exchange._attempts)
        return _silent(exchange, now_ms, cause)

    patches.attribute(Exchange, "silent", silent)


@bug("a counter is given once", {"content", "kept", "lost", "inconsistent_id"})
def counter_is_given_again_after_an_error(patches: Patches) -> None:
    """Withdraw a publication after any error, definite or not."""

    def take_out(joined: Joined, line: _Line, batch: _BatchUnderWay, error: FlotillaError) -> bool:
        joined._state.withdraw(batch.entry)
        batch.was_sent = True
        return _take_out(joined, line, batch, error)

    patches.attribute(Joined, "_take_out", take_out)


@bug("a PUT stands in the outbox until it is answered", {"unexpected", "progress", "lost"})
def outbox_forgets_what_it_sends(patches: Patches) -> None:
    """Take a PUT out of the outbox when it is sent."""

    def begin(joined: Joined, line: _Line, batch: _BatchUnderWay) -> None:
        joined._state.acknowledged(batch.entry)
        _begin(joined, line, batch)

    patches.attribute(Joined, "_begin", begin)


@bug("a cursor moves over what was delivered", {"gap", "lost"})
def cursor_moves_too_far(patches: Patches) -> None:
    """Move the cursor behind the publication that comes after those delivered."""

    def raise_cursor(state: State, topic: str, last_id: int, durable: bool = True) -> None:
        _raise_cursor(state, topic, last_id + 1, durable)

    patches.attribute(State, "raise_cursor", raise_cursor)


@bug("a cursor moves when the application is done, and not before", {"lost"})
def cursor_is_stored_before_the_hand_over(patches: Patches) -> None:
    """Move the cursor as soon as the answer is there."""

    def get(
        client: Operations,
        topic: str | None,
        wait_ms: int,
        max_count: int,
        in_loop: bool = False,
    ) -> Steps[Delivery | None]:
        delivery = yield from _get(client, topic, wait_ms, max_count, in_loop)
        if delivery is not None:
            client.state.raise_cursor(delivery.topic, delivery.last_id)
        return delivery

    def hand_over(readers: Readers, reader: Reader, delivery: Delivery | None) -> Delivery | None:
        if delivery is not None:
            readers._hand_over(reader, delivery.topic, delivery.first_id, delivery.last_id)
        return delivery

    patches.attribute(Operations, "get", get)
    patches.attribute(Readers, "hand_over", hand_over)


@bug("what was handed over before is said to be", {"handed_over_twice"})
def redelivery_is_not_said(patches: Patches) -> None:
    """Forget what was handed over and not acknowledged."""

    def handed(state: State, topic: str) -> int:
        return state.cursor(topic) or 0

    patches.attribute(State, "handed", handed)


@bug(
    "a client's state is on its disk before a request goes out",
    {"handed_over_twice", "kept", "cursor_regression"},
)
def the_state_is_not_synced(patches: Patches) -> None:
    """Wait for no change of a client's state: the next sync of the kernel's has it, or none."""

    def commit(state: State, *statements: Statement, durable: bool = True) -> int:
        return _commit(state, *statements, durable=False)

    patches.attribute(state_module, "UNWAITED_MAX", 1 << 30)
    patches.attribute(State, "_commit", commit)


@bug(
    "a client reads what is on its disk, and not what a failed sync has left in the cache",
    {"handed_over_twice", "kept", "cursor_regression", "unexpected"},
    seeds_max=SEEDS_RARE_MAX,
)
def the_state_is_read_from_the_cache(patches: Patches) -> None:
    """Go on with what a failed sync of the client's state has dropped."""
    patches.attribute(state_module, "_forget_cached", lambda directory: None)


@bug(
    "a client goes on behind a failed sync only when all of its log is on its disk",
    {"handed_over_twice", "kept", "cursor_regression", "unexpected"},
)
def the_log_is_not_written_again(patches: Patches) -> None:
    """Store behind a hole in the log of the client's state."""
    patches.attribute(state_module, "_write_again", lambda path: None)


@bug("a GET that is cancelled has taken nothing", {"skipped", "lost", "handed_over_twice"})
def cancelled_gets_have_taken(patches: Patches) -> None:
    """Await something between the hand-over of a delivery and its return."""
    get = AsyncClient._get

    async def get_slowly(client: AsyncClient, *arguments: Any) -> Delivery | None:
        delivery = await get(client, *arguments)
        await asyncio.sleep(0.01)
        return delivery

    patches.attribute(AsyncClient, "_get", get_slowly)


@bug("who is cancelled lets the next one have its turn", {"unexpected"})
def cancelled_operations_keep_their_turn(patches: Patches) -> None:
    """Let nobody have a turn behind one that was cancelled."""
    leave = aio._AsyncTurn.__aexit__

    async def stay(turn: aio._AsyncTurn, *error: object) -> None:
        if error[0] is not asyncio.CancelledError:
            await leave(turn, *error)

    patches.attribute(aio._AsyncTurn, "__aexit__", stay)


@bug("of several callers each is told of its own publication", {"own_answer"})
def joined_callers_are_answered_backwards(patches: Patches) -> None:
    """Give those who were joined their ids from the last to the first."""

    def answered(joined: Joined, line: _Line, batch: _BatchUnderWay, done: Done) -> None:
        counters = [piece.counter for _, piece in batch.owned]
        for (_, piece), counter in zip(batch.owned, reversed(counters), strict=True):
            piece.counter = counter
        _answered(joined, line, batch, done)

    patches.attribute(Joined, "_answered", answered)


@bug("of several callers each gets its own error", {"own_answer", "definite", "call_order"})
def joined_callers_get_each_others_errors(patches: Patches) -> None:
    """Tell who comes next what was refused for certain, and who was refused that it is stored."""
    refused: list[Exception] = []

    def end(call: Call, error: Exception | None = None) -> None:
        if isinstance(error, FlotillaError) and error.definite and call.pieces:
            refused.append(error)
            for piece in call.pieces:
                piece.result = PutResult(1, piece.count, False, True)
            _end(call)
        elif error is None and refused and call.pieces:
            _end(call, refused.pop())
        else:
            _end(call, error)

    patches.attribute(Call, "end", end)


@bug("counters are given in the order of the calls", {"call_order"})
def joined_callers_are_stored_backwards(patches: Patches) -> None:
    """Give those who are joined their counters from the last to the first."""

    def joined(calls: Sequence[Call]) -> list[Sequence[tuple[Call, Piece]]]:
        return _joined(calls[::-1])

    patches.attribute(joining, "_joined", joined)


@bug("who is cancelled publishes once", {"call_order"})
def cancelled_callers_are_stored_again(patches: Patches) -> None:
    """Publish once more what a cancelled caller has under way."""

    async def publish(
        client: AsyncClient, make: Callable[[Callable[[], object]], Sequence[Call]]
    ) -> Sequence[Call]:
        made: list[Call] = []

        def noted(told: Callable[[], object]) -> Sequence[Call]:
            made.extend(make(told))
            return made

        try:
            return await _publish(client, noted)
        except asyncio.CancelledError:
            for call in made:
                if call.is_stored and not call.is_over:
                    batches = [(piece.lengths, piece.data) for piece in call.pieces]
                    again = Call(call.topic, batches, call.end_ms, lambda: None)
                    client._parts.here().add(again)
            raise

    patches.attribute(AsyncClient, "_publish", publish)


@bug("NoSubscribers is said of what is not stored, and of nothing else", {"definite"})
def what_was_sent_again_is_called_unheard(patches: Patches) -> None:
    """Say of a duplicate that nobody subscribes, where the caller wants an error of that."""

    def results(call: Call) -> list[PutResult]:
        found = _results(call)
        if call.unheard == "raise" and any(result.duplicate for result in found):
            raise NoSubscribers("nobody subscribes", details={"topic": call.topic, "stored": 0})
        return found

    patches.attribute(Call, "results", results)


@bug("an answer on record says behind what it was asked for", {"recorded"}, mode="live")
def an_answer_behind_what_is_gone_says_no_cursor(patches: Patches) -> None:
    """Record what an answer brings behind what is gone without the cursor it was asked with."""

    def complete(operations: Operations, operation: Operation, done: Done, **fields: Any) -> None:
        if operation.beside is not None:
            fields["cursor"] = None
        _complete(operations, operation, done, **fields)

    patches.attribute(Operations, "complete", complete)


@bug("who moves a subscription goes on where it was moved to", {"travels"})
def a_move_is_not_taken(patches: Patches) -> None:
    """Leave a subscription where the client believes it to be, whoever says that it was moved."""

    def place(
        operations: Operations, topic: str, cursor: int, placed: int, durable: bool = True
    ) -> None:
        pass

    patches.attribute(Operations, "_place", place)
