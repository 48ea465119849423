"""Why a network answered as it did, and what it has learned."""
