"""From which lane a lane reads, against the words of AMD's manual."""

import pytest

from oracles.backends.cdna.tables import cross_lane
from oracles.backends.cdna.tables.cross_lane import NONE
from oracles.verdict import Unsupported

LANES = range(64)


def test_quad_perm_stays_in_its_quad():
    assert cross_lane.dpp(0b00_01_10_11) == tuple(lane ^ 3 for lane in LANES)


@pytest.mark.parametrize(
    ("control", "first_row", "second_row_begins"),
    [
        (0x101, [*range(1, 16), NONE], 17),  # row_shl:1
        (0x113, [NONE, NONE, NONE, *range(13)], NONE),  # row_shr:3
        (0x122, [14, 15, *range(14)], 30),  # row_ror:2
        (0x130, [*range(1, 17)], 17),  # wave_shl:1
        (0x138, [NONE, *range(15)], 15),  # wave_shr:1
        (0x140, [*range(15, -1, -1)], 31),  # row_mirror
        (0x141, [*range(7, -1, -1), *range(15, 7, -1)], 23),  # row_half_mirror
        (0x142, [NONE] * 16, 15),  # row_bcast:15
        (0x143, [NONE] * 16, NONE),  # row_bcast:31
        (0x155, [5] * 16, 21),  # row_newbcast:5
    ],
)
def test_dpp_reads_the_lane_that_its_control_names(control, first_row, second_row_begins):
    assert list(cross_lane.dpp(control)[:16]) == first_row
    assert cross_lane.dpp(control)[16] == second_row_begins


def test_dpp_at_the_ends_of_the_wave():
    assert cross_lane.dpp(0x130)[63] == NONE  # wave_shl:1
    assert (cross_lane.dpp(0x134)[63], cross_lane.dpp(0x13C)[0]) == (0, 63)  # wave_rol:1, wave_ror:1
    assert set(cross_lane.dpp(0x143)[32:]) == {31}  # row_bcast:31
    assert cross_lane.dpp(0x142)[63] == 47  # row_bcast:15


def test_dpp_writes_the_rows_and_banks_with_a_bit():
    assert [lane for lane in LANES if cross_lane.dpp_written(0b1010, 0b0001)[lane]] == [16, 17, 18, 19, 48, 49, 50, 51]


def test_an_unknown_control_is_refused():
    with pytest.raises(Unsupported, match="DPP control 0x160 is not known"):
        cross_lane.dpp(0x160)


def test_swizzle_with_masks_and_with_a_quad():
    assert cross_lane.swizzle(0x1F | 16 << 10) == tuple(lane ^ 16 for lane in LANES)  # SWAP,16
    assert cross_lane.swizzle(0x18 | 3 << 5) == tuple(lane // 8 * 8 + 3 for lane in LANES)  # BROADCAST,8,3
    assert cross_lane.swizzle(0x8000 | 0b00_00_11_10)[4:8] == (6, 7, 4, 4)  # QUAD_PERM,2,3,0,0
    with pytest.raises(Unsupported, match="0xc001"):
        cross_lane.swizzle(0xC001)


@pytest.mark.parametrize("size", [16, 32])
def test_a_swap_moves_every_value_once_and_undoes_itself(size):
    registers = [[f"a{lane}" for lane in LANES], [f"b{lane}" for lane in LANES]]
    swap = cross_lane.swapped(size)

    def swapped(values):
        return [[values[operand][lane] for operand, lane in sources] for sources in swap]

    once = swapped(registers)
    assert (once[0][size], once[1][0], once[0][0], once[1][size]) == ("b0", f"a{size}", "a0", f"b{size}")
    assert sorted(once[0] + once[1]) == sorted(registers[0] + registers[1])
    assert swapped(once) == registers


def test_lanes_by_address_and_by_number():
    assert [cross_lane.bpermute(address, 4) for address in (0, 3, 4, 252, 256)] == [1, 1, 2, 0, 1]
    assert cross_lane.lane_number(67) == 3
    assert (cross_lane.first_lane(0b1000), cross_lane.first_lane(0)) == (3, 0)
