"""Confirms purchases: a FastStream application, as many processes of it as are needed."""

from __future__ import annotations

import asyncio
import os

from faststream import FastStream
from flotilla_broker import FlotillaBroker
from pydantic import BaseModel

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")

broker = FlotillaBroker(NODES)


class Purchase(BaseModel):
    """What a shop publishes to `purchases`."""

    number: int
    cents: int


class Confirmation(BaseModel):
    """What is published to `confirmations`."""

    purchase: int
    text: str


@broker.subscriber(
    "purchases", group="confirm", lease=5, max_attempts=3, dead_letter="purchases.dead"
)
@broker.publisher("confirmations")
async def confirm(purchase: Purchase) -> Confirmation:
    """Confirm a purchase; one that can't be read becomes a dead letter after three attempts."""
    await asyncio.sleep(0.01)  # the work
    print(f"confirmed {purchase.number}", flush=True)
    return Confirmation(purchase=purchase.number, text=f"thank you for {purchase.cents / 100:.2f}")


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run())
