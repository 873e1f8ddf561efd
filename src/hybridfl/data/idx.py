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

MOST_NUMBERS = 2**27
"""Of a file: MNIST's largest has 47 million."""
MOST_DIMENSIONS = 4


def read_idx(path: Path) -> Tensor:
    """The bytes of a gzipped IDX file as a tensor of its shape.

    Two zero bytes, 0x08 for unsigned bytes, the number of dimensions d, d big-endian sizes of 4 bytes, then the numbers. No
    more is unpacked than the shape says.
    """
    try:
        with gzip.open(path) as file:
            zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
            if zero != 0 or kind != 8:
                raise InputError(f"'{path}' is not an IDX file of bytes: fetch it again.")
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            count = math.prod(shape)
            if not 1 <= dimensions <= MOST_DIMENSIONS or not 1 <= count <= MOST_NUMBERS:
                sizes = " × ".join(map(str, shape[:MOST_DIMENSIONS])) + (" × …" if dimensions > MOST_DIMENSIONS else "")
                raise InputError(
                    f"'{path}' says that it holds {sizes or 'no'} numbers in {dimensions} dimensions: fetch it again."
                )
            numbers = np.frombuffer(file.read(count + 1), dtype=np.uint8)
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, struct.error) as error:
        raise InputError(f"'{path}' is not a gzipped IDX file ({error}): fetch it again.") from None
    if len(numbers) != count:
        holds = f"{len(numbers):,}" if len(numbers) < count else f"more than {count:,}"
        raise InputError(f"'{path}' holds {holds} numbers instead of {count:,}: fetch it again.")
    return torch.from_numpy(numbers.reshape(shape).copy())
