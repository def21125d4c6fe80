"""`headlight encode --file`: texts of a file, requests, vectors in a file; read jobs.py first."""
