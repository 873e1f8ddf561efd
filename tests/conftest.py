import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `data` run where HYBRIDFL_DATA names a folder with real data, and say so where it does not."""
    folder = os.environ.get("HYBRIDFL_DATA")
    if folder and Path(folder).is_dir():
        return
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(pytest.mark.skip(reason="no real data: set HYBRIDFL_DATA to a folder that holds them"))
