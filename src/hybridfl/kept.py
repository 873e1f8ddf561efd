"""Whether an algorithm, a fleet or a guard keeps something from one call to the next, which no state of a run holds.

The same run would give other numbers a second time, and others again where it goes on from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

from hybridfl.errors import InputError
from hybridfl.provenance import code_of


@dataclass(frozen=True, eq=False)
class Watch:
    """Parts of a run, and what they and the user's code that they reach were like before anything of them was called."""

    parts: Mapping[str, object]
    before: Mapping[str, str]

    @classmethod
    def over(cls, **parts: object) -> Watch:
        """Of parts that reach no code of the user's there is nothing to watch: hybridfl's own keep nothing."""
        named = {name: each for role, part in parts.items() for name, each in _with_fields(role, part)}
        before = code_of(**named)
        return cls({}, {}) if before.keys() <= named.keys() else cls(named, before)

    def check(self) -> None:
        """Raise `InputError` if any of it is not what it was."""
        if not self.parts:
            return
        after = code_of(**self.parts)
        names = [name for name in {**self.before, **after} if self.before.get(name) != after.get(name)]
        if names:
            inner = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
            said = ", ".join(f"'{name}'" for name in inner[:3]) + (", …" if len(inner) > 3 else "")
            raise InputError(
                f"An algorithm, a fleet or a guard keeps something from one call to the next ({said}), so a run would depend "
                "on what ran before it: keep it in the state that `init` and `step` return, and draw from generators that "
                "are seeded by the job or the fleet (for what is only remembered to save time, functools has caches)."
            )


def _with_fields(name: str, part: object) -> Iterator[tuple[str, object]]:
    """A part and, where it is a dataclass, what it is made of, so that what keeps something can be named."""
    yield name, part
    if is_dataclass(part) and not isinstance(part, type):
        for field in fields(part):
            held = getattr(part, field.name, None)
            if is_dataclass(held) or callable(held) or hasattr(held, "__dict__"):
                yield from _with_fields(f"{name}.{field.name}", held)
