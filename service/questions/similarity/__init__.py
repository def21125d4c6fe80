"""Why one text is like others."""
