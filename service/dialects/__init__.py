"""One file per API that clients speak; read dialect.py first."""
