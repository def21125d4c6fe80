"""The pictures that subcommands draw; matplotlib is imported only when one is asked for."""
