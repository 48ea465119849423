"""LitServe: python -m benchmarks.peers.with_litserve PORT"""

from __future__ import annotations

import sys
from typing import Any

import litserve

from benchmarks.peers.work import MOST, WAIT_S, chosen


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.work = chosen()

    def decode_request(self, request):  # LitServe reads annotations, and none is JSON
        return self.work.read(request)

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, requests: list[Any]) -> list[Any]:
        return list(self.work.run(requests))

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return self.work.write(output)


if __name__ == "__main__":
    api = Api(max_batch_size=MOST, batch_timeout=WAIT_S)
    server = litserve.LitServer(api, accelerator="cpu", timeout=120)
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="error")
