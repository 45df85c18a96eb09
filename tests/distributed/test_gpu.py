"""Groups on a GPU: NCCL in a world of one, and messages between sessions that share the device."""

from typing import Any

import onnx.parser
import pytest
import torch

from onnxtrain.distributed.groups import Groups
from onnxtrain.distributed.layout import Mesh
from onnxtrain.distributed.torch_groups import TorchGroups
from onnxtrain.kernels.collective.adasum import adasum_all_reduce
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.processes import run_world
from onnxtrain.types import CUDA

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> main '
pytestmark = [pytest.mark.gpu, pytest.mark.multi]


def nccl(groups: Groups) -> list[Any]:
    """Every transfer that a single rank can make with itself."""
    device = torch.device("cuda", 0)
    with TorchGroups(Mesh(), device, timeout=30) as own:
        x = torch.arange(4.0, device=device)
        own._sum(x, (0,))
        own._gather(x, (0,))
        host = torch.ones(2)
        own._sum(host, (0,))
        return [x.tolist(), host.tolist()]


def test_nccl_beside_gloo() -> None:
    assert run_world(1, nccl, timeout=30) == [[[0, 1, 2, 3], [1, 1]]]


REDUCE = """(float[3] x) => (float[3] y) {
  n = Neg(x)
  y = com.microsoft.NcclAllReduce<group_type = 1>(n)
}"""


def reduced(groups: Groups) -> list[Any]:
    session = InferenceSession(
        onnx.parser.parse_model(HEAD + REDUCE), SessionOptions(groups=groups), [CUDA.value]
    )
    x = torch.arange(3.0, device="cuda") + groups.rank
    [y] = session.run_torch(None, {"x": x})
    half = adasum_all_reduce(x.half(), groups=groups)[0]
    return [y.device.type, y.tolist(), half.device.type, half.dtype == torch.float16]


def test_two_processes_on_one_gpu_add_up_through_the_host() -> None:
    assert run_world(2, reduced) == [["cuda", [-1, -3, -5], "cuda", True]] * 2


SEND = """(float[{n}] x) => (bool done) {{
  go = Constant<value = bool {{1}}>()
  to = Constant<value = int64 {{1}}>()
  h = Neg(x)
  s = Shape(x)
  done = com.microsoft.Send<tag = 0, element_types = [1, 7]>(go, to, h, s)
}}"""
RECV = """() => (float[{n}] x, int64[1] s) {{
  go = Constant<value = bool {{1}}>()
  from = Constant<value = int64 {{0}}>()
  done, x, s = com.microsoft.Recv<tag = 0, element_types = [1, 7]>(go, from)
}}"""


def handed_over(groups: Groups, n: str) -> list[Any]:
    text = (RECV if groups.rank else SEND).format(n=n)
    session = InferenceSession(
        onnx.parser.parse_model(HEAD + text), SessionOptions(groups=groups), [CUDA.value]
    )
    feeds = {} if groups.rank else {"x": torch.arange(3.0)}
    return [value.tolist() for value in session.run_torch(None, feeds)]


@pytest.mark.parametrize("n", ["3", "n"])
def test_a_message_between_two_sessions_on_one_gpu(n: str) -> None:
    assert run_world(2, handed_over, n) == [[True], [[0, -1, -2], [3]]]
