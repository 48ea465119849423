"""Energy transformers as states that relax on an energy."""

from models.paths import set_kernel_cache

set_kernel_cache()
