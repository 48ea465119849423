"""From bytes to a graph that a model can score; runs off the event loop."""
