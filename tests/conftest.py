import hypothesis
import pytest

from hybridfl.data.store import DATA_SETS, data_dir, find

# The same examples every time, so that a change is what fails; how long one takes says something about the machine only.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `data` run where the data sets they name, or all if they name none, are on this machine."""
    here = {name for name in DATA_SETS if is_here(name)}
    for item in items:
        if marker := item.get_closest_marker("data"):
            missing = sorted((set(marker.args) or set(DATA_SETS)) - here)
            if missing:
                reason = f"no {', '.join(missing)} in '{data_dir()}': set HYBRIDFL_DATA to a folder that holds them"
                item.add_marker(pytest.mark.skip(reason=reason))


def is_here(name: str) -> bool:
    return all(find(data_dir(), file) for file in DATA_SETS[name].files)
