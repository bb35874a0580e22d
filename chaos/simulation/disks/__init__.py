"""Disks of nodes and of clients: what is durable, what is lost, what fails."""
