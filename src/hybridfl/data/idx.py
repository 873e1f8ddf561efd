"""The IDX format, in which MNIST and Fashion-MNIST come."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hybridfl.errors import InputError


def read_idx(path: Path) -> Tensor:
    """The bytes of a gzipped IDX file as a tensor of its shape.

    Two zero bytes, 0x08 for unsigned bytes, the number of dimensions d, d big-endian sizes of 4 bytes, then the numbers.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
        zero, kind, dimensions = struct.unpack(">HBB", content[:4])
        shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise InputError(f"'{path}' is not a gzipped IDX file ({error}): fetch it again.") from None
    if zero != 0 or kind != 8:
        raise InputError(f"'{path}' is not an IDX file of bytes: fetch it again.")
    numbers = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    if len(numbers) != math.prod(shape):
        raise InputError(f"'{path}' holds {len(numbers)} numbers instead of {math.prod(shape)}: fetch it again.")
    return torch.from_numpy(numbers.reshape(shape).copy())
