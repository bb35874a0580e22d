"""What a world is made from: its plan, its limits, and what came of it."""
