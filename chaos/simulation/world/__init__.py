"""One world: its nodes, their network, who operates them."""
