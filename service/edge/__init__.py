"""The door: who may ask, what is read of a request, and which handler takes it."""
