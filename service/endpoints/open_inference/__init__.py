"""The Open Inference Protocol, version 2: tensors by name, in JSON or in bytes behind it.

What is asked becomes a body of the route that serves the model, and what that answers tensors.
"""
