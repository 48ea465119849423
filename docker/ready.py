"""Exits with 0 where the server of this container is ready."""

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPSConnection  # urllib would ask a proxy

address = ("127.0.0.1", int(os.environ.get("BASIN_PORT") or 8000))
if os.environ.get("BASIN_TLS_CERTIFICATE"):  # which is of another name than this address
    unchecked = ssl._create_unverified_context()
    connection = HTTPSConnection(*address, timeout=4, context=unchecked)
else:
    connection = HTTPConnection(*address, timeout=4)
connection.request("GET", "/health/ready")
sys.exit(connection.getresponse().status != 200)
