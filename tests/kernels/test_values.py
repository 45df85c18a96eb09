"""Every row of the table in every type: the runtime's result against the float64 truth."""

import pytest

from onnxtrain.testing.case import Case
from onnxtrain.testing.close import mismatch
from onnxtrain.testing.model import declared_types, draw, evaluate, named
from onnxtrain.testing.table import runs_on, table, trial_types
from onnxtrain.testing.truth import own_errors, truth
from onnxtrain.types import DataType, dtype_name

TRIALS = [
    pytest.param(case, dtype, id=f"{case}-{dtype_name(dtype)}")
    for case in table()
    for dtype in trial_types(case)
]


@pytest.mark.parametrize(("case", "dtype"), TRIALS)
def test_values(case: Case, dtype: DataType, device: str, poison: None) -> None:
    if not runs_on(case, device):
        pytest.skip("the operator is joined on a CPU alone")
    inputs = draw(case, dtype)
    ours = evaluate(case, inputs, device)
    trues, allowed = truth(case, inputs), own_errors(case, dtype, inputs)
    rows = zip(named(case), ours, trues, allowed, declared_types(case, inputs), strict=True)
    for index, our, true, own, declared in rows:
        if case.compare is None or index in case.compare:
            assert (found := mismatch(our, true, own, declared)) is None, f"output {index}: {found}"
