"""The frames of the example: 1920 x 1080 pixels of 4 bytes, with their number in every 4 KiB."""

import numpy as np

SHAPE = (1080, 1920, 4)
_PAGE = 4096


def _stamps(frame):
    """Returns a view of the stamps of a frame."""
    pages = frame.reshape(-1).view(np.uint8)
    return pages[: pages.size // _PAGE * _PAGE].reshape(-1, _PAGE)[:, :8].view("<u8")


def stamp(frame, number):
    """Writes the number of a frame into every 4 KiB."""
    _stamps(frame)[...] = number


def check(frame):
    """Returns the number of a frame, and whether some stamps differ from it."""
    stamps = _stamps(frame)
    return int(stamps[0, 0]), bool((stamps != stamps[0, 0]).any())
