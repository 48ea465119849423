"""The same checkpoint behind general servers of models, each with its own batching of requests."""
