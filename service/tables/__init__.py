"""What is looked up: settings, keys, refusals, memory, cores, and the words of errors."""
