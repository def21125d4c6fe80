"""Ray, imported once without what its import warns of, which is its own age."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve.schema  # noqa: F401
