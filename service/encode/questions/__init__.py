"""Requests that ask why, beside what."""
