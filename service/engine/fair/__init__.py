"""Whose turn it is: the shares of the keys, and of the requests of one."""
