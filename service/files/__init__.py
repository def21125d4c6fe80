"""A model's files: found, loaded, and made where one is missing."""
