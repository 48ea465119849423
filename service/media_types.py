"""Media types that the server reads and writes."""

from __future__ import annotations

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
MULTIPART = "multipart/form-data"
PNG = "image/png"
HTML = "text/html"
