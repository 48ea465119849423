"""Exits with 0 where the server of this container is ready."""

import os
import sys
from http.client import HTTPConnection  # urllib would ask a proxy

connection = HTTPConnection("127.0.0.1", int(os.environ.get("BASIN_PORT") or 8000), timeout=4)
connection.request("GET", "/health/ready")
sys.exit(connection.getresponse().status != 200)
