"""Records of contracts: what an argument is, and what a kernel may be compiled for."""

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Input


def int_rows(*shape, dtype="int32"):
    return array(np.zeros(shape, dtype), dtype)


@pytest.mark.parametrize(
    ("item", "one", "other", "same"),
    [
        ({"role": "scalar"}, 3, 4, True),
        ({"role": "scalar", "compiled": True}, 3, 4, False),
        ({"role": "scalar"}, False, True, False),
        ({"role": "scalar"}, "align", "all", False),
        ({"role": "scalar"}, None, 0, False),
        ({"role": "scalar", "many": True}, (16, 16), (16, 32), True),
        ({"role": "scalar", "many": True, "compiled": True}, (16, 16), (16, 32), False),
        ({"role": "device"}, int_rows(2, 3), int_rows(4, 5), True),
        ({"role": "device"}, int_rows(2), int_rows(2, dtype="int64"), False),
        ({"role": "device", "compiled_axes": (1,)}, int_rows(2, 3), int_rows(4, 3), True),
        ({"role": "device", "compiled_axes": (1,)}, int_rows(2, 3), int_rows(2, 4), False),
        ({"role": "device", "many": True}, (int_rows(2),), (int_rows(3), int_rows(4)), True),
        ({"role": "device", "many": True}, (int_rows(2),), (int_rows(2, dtype="int64"),), False),
    ],
)
def test_what_a_kernel_may_be_compiled_for(item, one, other, same):
    argument = Input(name="x", doc="", **item)
    assert (argument.mode(one) == argument.mode(other)) is same
