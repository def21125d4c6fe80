"""What is wrong with a request, in words of ours: places, types, counts; never what it says."""
