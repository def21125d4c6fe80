"""How well documents answer a query, token by token."""
