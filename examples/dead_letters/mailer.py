"""Send mails, as far as they have an address: `mailer.py [IDLE_S]`."""

from __future__ import annotations

import os
import sys

from flotilla_client import Client, WorkItem

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


def send(mail: WorkItem) -> None:
    """Send a mail. Raises ValueError."""
    address = mail.publication.decode()
    if "@" not in address:
        raise ValueError(f"{address!r} is no address")
    print(f"sent to {address}", flush=True)


def main(idle_s: float | None = None) -> None:
    with Client(NODES) as client:
        mails = client.work(
            "mails", "mailer", lease=10, max_attempts=3, dead_letter="mails.dead", idle=idle_s
        )
        for mail in mails:
            try:
                send(mail)
            except ValueError as error:
                print(f"attempt {mail.attempt}: {error}", flush=True)
                mail.nak(delay=0.1)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
