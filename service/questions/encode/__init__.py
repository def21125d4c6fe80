"""What most requests ask for: what is wanted of each input, as the model makes it."""
