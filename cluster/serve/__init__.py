"""What clients meet: their port, their requests, the broker's answers."""
