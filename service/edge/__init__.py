"""The door: who may ask, what is read of it, and which handler takes it."""
