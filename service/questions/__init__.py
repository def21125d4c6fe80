"""What a request may ask: a folder for each question, with its wire and its arithmetic."""
