"""JSON objects that know their own checksum, so that one changed letter is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"


def sealed(values: Mapping[str, Any]) -> bytes:
    """An object as a file has it, with the checksum of all its values as its last."""
    return (json.dumps({**values, CHECKSUM: _checksum(values)}, indent=2) + "\n").encode()


def opened(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values without their checksum; None where it does not hold. Without one, as of earlier versions, all is well."""
    values = {name: value for name, value in said.items() if name != CHECKSUM}
    return values if CHECKSUM not in said or said[CHECKSUM] == _checksum(values) else None


def _checksum(values: Mapping[str, Any]) -> str:
    """Of what JSON makes of them, whatever their order."""
    read_back = json.loads(json.dumps(values))  # a number as a key becomes text
    return hashlib.blake2b(json.dumps(read_back, sort_keys=True).encode(), digest_size=16).hexdigest()
