"""What a request asks of a checkpoint's head, and how it is answered."""
