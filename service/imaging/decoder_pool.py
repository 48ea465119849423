"""Decoded pictures, no more of them at a time than memory was planned for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from service.endpoints.complete.decoding import Opened, open_picture
from service.endpoints.complete.parse import PictureRequest
from service.imaging.decode import decode
from service.imaging.header import EncodedImage
from service.imaging.image import ImageData, with_pointer

T = TypeVar("T")


class ImageDecoder:
    """Decodes in a thread of its own, for up to `places` requests that hold what they got.

    Encoded, a picture counts among the bodies; decoded it may be a thousand times as large. Three
    places keep compute busy: one is read and one is written while one is completed.
    """

    def __init__(self, places: int = 3) -> None:
        self._places = asyncio.Semaphore(places)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pictures")

    @asynccontextmanager
    async def open(self, request: PictureRequest) -> AsyncIterator[Opened]:
        """The picture and mask of `request`, which hold a place until the context ends.

        Raises:
            Problem: `invalid-image`.
        """
        async with self._places:
            loop = asyncio.get_running_loop()
            yield await loop.run_in_executor(self._thread, open_picture, request)

    async def look(self, file: EncodedImage, where: str, see: Callable[[ImageData], T]) -> T:
        """What `see` makes of the picture in `file`, which holds a place until then.

        Raises:
            Problem: `invalid-image`, at `where`.
        """

        def looked() -> T:
            with with_pointer(where):
                return see(decode(file))

        async with self._places:
            return await asyncio.get_running_loop().run_in_executor(self._thread, looked)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
