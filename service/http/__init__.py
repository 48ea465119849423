"""HTTP below the routes: protocol, bodies, media types, throttling, idempotency."""
