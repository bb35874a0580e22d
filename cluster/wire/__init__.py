"""What goes over a connection between two nodes: messages, frames, levels of their encoding."""
