"""`/jobs`: requests that are answered later."""
