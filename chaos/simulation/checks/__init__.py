"""What is looked at while a world runs, and at its end."""
