"""Every check before a replica serves: what is asked, of what, and at which entry points."""
