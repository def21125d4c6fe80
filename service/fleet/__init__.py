"""All replicas together: how many there should be, and what they say as one."""
