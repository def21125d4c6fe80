"""Changes to attention heads that a request asks for."""
