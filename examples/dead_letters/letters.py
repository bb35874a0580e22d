"""Look at dead letters, or send them again: `letters.py list|again`."""

from __future__ import annotations

import os
import sys

from flotilla_client import Client, Message

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")
TOPIC = "mails.dead"
ABOUT = "dead-letter-"  # begins the headers that the cluster has added


def show(letter: Message) -> None:
    topic, id_, group, reason = (
        str(letter.headers[ABOUT + part]) for part in ("topic", "id", "group", "reason")
    )
    what = letter.publication.decode()
    print(f"{letter.id}: {what} (from {topic} {id_}, group {group}: {reason})")


def send_again(client: Client, letter: Message) -> None:
    own = {name: value for name, value in letter.headers.items() if not name.startswith(ABOUT)}
    topic = str(letter.headers[ABOUT + "topic"])
    sent = client.publish(topic, letter.publication, key=letter.key, headers=own)
    letter.ack()
    print(f"{letter.id}: sent again, {topic} {sent.id}")


def main(command: str) -> None:
    with Client(NODES, name="dead-letters") as client:
        client.subscribe(TOPIC)
        letters = client.get(TOPIC, timeout=2, max_count=100, ack="manual")
        for letter in letters or ():
            show(letter) if command == "list" else send_again(client, letter)


if __name__ == "__main__":
    main(sys.argv[1])
