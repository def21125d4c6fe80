"""What runs: the queue, the lanes, the proof that they are right."""
