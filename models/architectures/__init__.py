"""One file per architecture; `models.registry` finds them."""
