"""The APIs that clients speak: a room for each, and the document of all of them."""
