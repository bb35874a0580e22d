"""What a node is told: its settings, and where its log goes."""
