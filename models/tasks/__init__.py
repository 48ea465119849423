"""Networks by task: node scorer, graph classifier, image completer."""
