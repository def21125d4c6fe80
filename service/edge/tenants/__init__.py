"""What one key's requests leave to others: room, and turns."""
