"""What makes a number that is answered, token by token."""
