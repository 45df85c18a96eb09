import importlib
import itertools
import pkgutil

from onnxtrain.testing import cases
from onnxtrain.testing.case import Case, apart, normal, only
from onnxtrain.testing.model import draw
from onnxtrain.testing.table import runs_on, table, trial_types
from onnxtrain.types import FLOATS, DataType


def test_every_module_of_rows_is_in_the_table() -> None:
    known = {id(row) for row in table()}
    for found in pkgutil.iter_modules(cases.__path__):
        module = importlib.import_module(f"{cases.__name__}.{found.name}")
        missing = [str(row) for row in getattr(module, "CASES", ()) if id(row) not in known]
        assert not missing, f"{found.name} is not in FAMILIES of testing/table.py"


def test_types_that_the_schema_forbids_are_not_tried() -> None:
    old = Case("Exp", [normal(2)], opset=6, dtypes=FLOATS)
    assert DataType.BFLOAT16 not in trial_types(old)
    assert set(trial_types(Case("Exp", [normal(2)]))) == FLOATS


def test_a_row_of_fixed_types_is_tried_once() -> None:
    row = Case("Exp", [normal(2).typed(DataType.DOUBLE)])
    assert len(trial_types(row)) == 1


def test_inputs_are_rounded_to_the_type_under_test() -> None:
    row = Case("Neg", [normal(50, scale=40)], dtypes=only(DataType.UINT8))
    (drawn,) = draw(row, DataType.UINT8)
    again = draw(row, DataType.UINT8)[0]
    assert drawn.tolist() == again.tolist()
    assert draw(row, DataType.FLOAT16)[0].dtype.itemsize == 2


def test_distinct_values_keep_away_from_zero() -> None:
    for count in (1, 2, 5, 6):
        values = sorted(Case("Neg", [apart(count)]).draw()[0].tolist())
        assert min(map(abs, values)) > 0.02
        assert all(b - a > 0.04 for a, b in itertools.pairwise(values))


def test_what_is_joined_on_a_cpu_alone_is_tried_there() -> None:
    """Its kernels call what torch and oneDNN have for a CPU."""
    assert all(runs_on(row, "cpu") for row in table())
    elsewhere = {row.op for row in table() if not runs_on(row, "cuda:1")}
    assert elsewhere == {"LSTMLayer", "LSTMLayerGrad", "MaxPoolInPlanes", "MaxPoolInPlanesGrad"}
