"""The replicated state: commands, the tables they change, copies of them."""
