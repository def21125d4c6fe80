"""What is wrong with a request, in our own words: places, types, counts; never its content."""
