"""Sums of lanes that may differ are found in compiled code, and others are left alone."""

import pytest

from kernels.torn import torn_sums

FUSED = """
	mul.f32 	%r3, %r1, %r2;
	shfl.sync.bfly.b32 	%r4, %r3, 1, 31, -1;
	fma.rn.f32 	%r5, %r1, %r2, %r4;
"""
APART = FUSED.replace("fma.rn.f32 	%r5, %r1, %r2, %r4;", "add.f32 	%r5, %r3, %r4;")
ROUNDED = APART.replace("mul.f32", "mul.rn.f32")
FURTHER = """
	shfl.sync.bfly.b32 	%r6, %r5, 2, 31, -1;
	add.f32 	%r7, %r5, %r6;
"""
STORE = "\tst.shared.b32 \t[%r9], %r7;\n"


@pytest.mark.parametrize("sum_", [FUSED, APART])
def test_sums_that_all_lanes_store(sum_: str) -> None:
    assert torn_sums(sum_ + FURTHER + STORE) == ["%r7"]
    several = STORE.replace("b32", "v2.b32").replace("%r7", "{%r8, %r5}")
    assert torn_sums(sum_ + several) == ["%r5"]


def test_sums_of_doubles() -> None:
    halves = """
	mul.f64 	%rd3, %rd1, %rd2;
	mov.b64 	{%r1, %r2}, %rd3;
	shfl.sync.bfly.b32 	%r3, %r1, 1, 31, -1;
	shfl.sync.bfly.b32 	%r4, %r2, 1, 31, -1;
	mov.b64 	%rd4, {%r3, %r4};
	fma.rn.f64 	%rd5, %rd1, %rd2, %rd4;
	st.shared.b64 	[%r9], %rd5;
"""
    assert torn_sums(halves) == ["%rd5"]


@pytest.mark.parametrize(
    "ptx",
    [
        ROUNDED + FURTHER + STORE,
        FUSED + FURTHER + STORE.replace("\tst", "\t@%p1 st"),
        FUSED + FURTHER + STORE.replace("%r7", "%r3"),
        FUSED + FURTHER + STORE.replace("shared", "global"),
        FUSED.replace("%r4, %r3, 1, 31, -1", "%r6, %r3, 1, 31, -1") + STORE.replace("%r7", "%r5"),
    ],
    ids=["rounded", "of one lane", "of others", "elsewhere", "of one thread"],
)
def test_sums_that_cannot_differ(ptx: str) -> None:
    assert torn_sums(ptx) == []
