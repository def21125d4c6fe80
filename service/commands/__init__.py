"""The subcommands of `headlight`, but for serve."""
