"""Stand-ins for imports that nobody supplied: taking one over is free, using it is an error that says what to do."""

from __future__ import annotations

from typing import Any, NoReturn

from oracles.verdict import Unsupported


class MissingImport(Unsupported):
    """Lifted code used an import that is neither stubbed nor followed: nothing can be judged with it."""


class StandIn:
    """Takes the place of one import.

    It may be passed around, be compared by identity, stand in a type union and be printed. Everything that would need
    the real object raises ``MissingImport``, also as a truth value: a guess there would choose a branch.
    """

    def __init__(self, what: str, reason: str) -> None:
        object.__setattr__(self, "_what", what)
        object.__setattr__(self, "_reason", reason)

    def _use(self, *_: Any, **__: Any) -> NoReturn:
        raise _missing(self)

    __call__ = __bool__ = __iter__ = __next__ = __len__ = __contains__ = __getitem__ = __setitem__ = __delitem__ = _use
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = _use
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _use
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __and__ = __rand__ = _use
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __xor__ = __rxor__ = __neg__ = __invert__ = _use
    __enter__ = __exit__ = __await__ = __instancecheck__ = __subclasscheck__ = __setattr__ = __delattr__ = _use
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        # Python and libraries probe for special methods; only a plain attribute is a use.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise _missing(self)

    def __or__(self, _: Any) -> StandIn:
        return self

    __ror__ = __or__

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        return (_base(self),)

    def __repr__(self) -> str:
        return f"<stand-in for {object.__getattribute__(self, '_what')}>"


def _missing(stand_in: StandIn) -> MissingImport:
    what, reason = (object.__getattribute__(stand_in, name) for name in ("_what", "_reason"))
    return MissingImport(f"{what} was used, but {reason}")


def _base(stand_in: StandIn) -> type:
    """A base class in place of a missing one: what the subclass does not define itself raises."""

    def use(self: object, *_: Any, **__: Any) -> NoReturn:
        raise _missing(stand_in)

    return type("MissingBase", (), {"__init__": use, "__getattr__": use})
