"""What the requests of our own routes are made of."""
