"""Requests that change what heads write: gates, patches and sweeps of them."""
