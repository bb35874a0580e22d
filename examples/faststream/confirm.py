"""Confirms orders: a FastStream application, as many processes of it as are needed."""

from __future__ import annotations

import asyncio
import os

from faststream import FastStream
from flotilla_broker import FlotillaBroker
from pydantic import BaseModel

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")

broker = FlotillaBroker(NODES)


class Order(BaseModel):
    """What a shop publishes to `orders`."""

    number: int
    cents: int


class Confirmation(BaseModel):
    """What is published to `confirmations`."""

    order: int
    text: str


@broker.subscriber("orders", group="confirm", lease=5, max_attempts=3, dead_letter="orders.dead")
@broker.publisher("confirmations")
async def confirm(order: Order) -> Confirmation:
    """Confirm an order; one that can't be read becomes a dead letter after three attempts."""
    await asyncio.sleep(0.01)  # the work
    print(f"confirmed {order.number}", flush=True)
    return Confirmation(order=order.number, text=f"thank you for {order.cents / 100:.2f}")


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run())
