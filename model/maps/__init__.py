"""What is shown of attention."""
