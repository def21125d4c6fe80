"""What a head does."""
