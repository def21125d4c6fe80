"""Every check before a replica serves: what it checks, where, and at which entry points."""
