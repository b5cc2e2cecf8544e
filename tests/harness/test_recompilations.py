"""How many variants of a kernel are too many, and what is said of them, in the words of every backend."""

import pytest

from oracles.recompilations import HINT, Recompilations

EMULATED = "kernel (x=*{type}:{assumed}, n=i32{count}, BLOCK=constexpr:64, num_warps=4)"
DEVICE = "kernel (x: *{type}{assumed}, {count}, BLOCK=64) warps 4 #{checksum}"


def failures(*calls):
    found = Recompilations()
    for call in calls:
        found.note("mode", call)
    return [failure.detail for failure in found.failures("mode")]


def emulated(kind="i32", assumed="", count=""):
    return EMULATED.format(type=kind, assumed=assumed, count=count)


def test_two_are_allowed_and_three_are_told_by_what_differs() -> None:
    variants = [emulated(count=count) for count in ("", ":D", ":S")]
    assert failures(variants[:1], variants[1:2], variants[:1]) == []
    assert failures(*([one] for one in variants)) == [f"3 compilations for mode; n is i32, i32:D or i32:S; {HINT}"]


def test_the_device_backends_variants_are_read_as_well() -> None:
    variants = [
        DEVICE.format(type="i32", assumed=assumed, count="n: i32", checksum=len(assumed))
        for assumed in ("", " divisible")
    ]
    variants.append(DEVICE.format(type="i32", assumed="", count="n=1", checksum=7))
    assert failures(variants[:2]) == []
    (said,) = failures(*([one] for one in variants))
    assert "; x is *i32 or *i32 divisible; n is constexpr:1 or i32; " in said


def test_a_kernel_that_a_call_launches_for_two_things_may_be_compiled_twice_for_each() -> None:
    """Queries in bfloat16 and keys in float32, say; the number of what it is compiled for may differ as well."""
    calls = [[emulated("bf16", assumed), emulated("fp32", assumed)] for assumed in ("D", "DS")]
    assert failures(*calls) == []
    heads = [[emulated("bf16").replace("64", size), emulated("bf16")] for size in ("1", "1")]
    assert failures(*heads, [emulated("bf16", "D"), emulated("bf16", "D").replace("64", "1")]) == []


def test_three_for_one_of_several_things_are_too_many() -> None:
    calls = [[emulated("bf16", "D", count), emulated("fp32", "D")] for count in ("", ":D", ":S")]
    assert failures(*calls) == [f"3 compilations for mode; n is i32, i32:D or i32:S; {HINT}"]


@pytest.mark.parametrize("launches", [1, 2, 3])
def test_launches_that_differ_in_what_is_assumed_of_counts_allow_no_more(launches) -> None:
    variants = [emulated(count=count) for count in ("", ":D", "=x")]
    assert len(failures(*(variants[start : start + launches] for start in range(3)))) == 1


def test_a_count_of_one_is_no_declared_constant() -> None:
    """Triton compiles for the number 1; two launches of one call, with counts 1 and 5, are for the same."""
    one, five = "kernel (x=*i32, n=constexpr:1)", "kernel (x=*i32, n=i32)"
    assert len(failures([one, five], ["kernel (x=*i32, n=i32:D)"])) == 1


def test_a_count_that_is_declared_a_constant_is_found_however_many_launches_a_call_has() -> None:
    calls = [
        [f"kernel (x=*i32, n=constexpr:{number})", f"kernel (x=*i32, n=constexpr:{number + 1})"] for number in (1, 3, 5)
    ]
    assert len(failures(*calls)) == 1


def test_kernels_and_modes_are_counted_apart() -> None:
    found = Recompilations()
    for number in range(2):
        found.note("one", [f"first (n=constexpr:{number})", f"second (n=constexpr:{number})"])
        found.note("other", [f"first (n=constexpr:{number + 2})"])
    assert (found.failures("one"), found.failures("other"), len(found)) == ([], [], 6)
    found.note("one", ["first (n=constexpr:9)"])
    assert [failure.key for failure in found.failures("one")] == ["recompiled:first"]


def test_variants_without_parameters_are_told_as_they_are() -> None:
    names = [f"kernel (compiled before the first call, {number})" for number in range(3)]
    assert failures(*([name] for name in names)) == [f"3 compilations for mode; {'; '.join(names)}; {HINT}"]
