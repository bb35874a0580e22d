"""What an experiment says: its reading, its bounds, what a wrong word may have meant."""
