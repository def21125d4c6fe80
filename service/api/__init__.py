"""What clients speak: a room for each API, and the document of all of them."""
