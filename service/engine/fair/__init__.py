"""Fair queues: which API key, and which of its requests, is served next."""
