"""The HTTP routes, one folder per feature: `routes`, `schemas`, `parse` and `infer`."""
