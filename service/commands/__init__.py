"""The subcommands of `headlight`, except serve."""
