"""What a head does: by position, and by the relations of words."""
