"""What is shown before and while a replica serves: that its answers are right."""
