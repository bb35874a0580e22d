"""Read events until SIGTERM or ctrl-C, and stop between two of them: `audit.py`."""

from __future__ import annotations

import asyncio
import os
import signal

from flotilla_client import AsyncClient, Message

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


async def handle(message: Message) -> None:
    await asyncio.sleep(0.01)  # what takes time
    again = " again" if message.redelivered else ""
    print(f"event {message.id}{again}: {message.publication.decode()}", flush=True)


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    async with AsyncClient(NODES, name="audit", timeout=10) as client:
        await client.subscribe("events")
        print("subscribed", flush=True)
        async with client.messages("events") as messages:
            while not stop.is_set():
                coming = asyncio.ensure_future(anext(messages))
                await asyncio.wait({coming, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
                    break
                await handle(coming.result())
    print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
