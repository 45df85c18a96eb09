"""One process of an MPI world: runs one of the functions below and writes its result as JSON.

Started by ``mpiexec -n 2 python mpi_member.py NAME TIMEOUT FOLDER``.
"""

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import torch

from onnxtrain.distributed.layout import Mesh
from onnxtrain.distributed.mpi_groups import MpiGroups
from onnxtrain.kernels.collective.adasum import adasum_all_reduce
from onnxtrain.kernels.collective.reduce import nccl_all_reduce
from onnxtrain.kernels.collective.shares import nccl_all_gather, nccl_reduce_scatter
from onnxtrain.kernels.communication.point_to_point import recv, send

FLOAT, INT64 = 1, 7


def own(rank: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def floats(tensors: Any) -> list[Any]:
    return [tensor.double().tolist() for tensor in tensors]


def collectives(groups: MpiGroups) -> dict[str, Any]:
    shapes = [(5, 10), (14,), (2, 8)]
    half = torch.tensor([1.0 + groups.rank], dtype=torch.float16)
    groups.all_reduce(half, 0)
    return {
        "reduce": floats(nccl_all_reduce(*own(groups.rank, *shapes), groups=groups)),
        "gather": floats(nccl_all_gather(*own(groups.rank, *shapes), groups=groups)),
        "scatter": floats(nccl_reduce_scatter(*own(groups.rank, *shapes), groups=groups)),
        "half": half.tolist(),
        "horizontal": groups.ranks(4),
    }


def divided(groups: MpiGroups) -> list[float]:
    """Of four ranks, two share each layer."""
    with MpiGroups(Mesh(4, 2, 2), timeout=groups.timeout) as mesh:
        x = torch.tensor([10.0**mesh.rank])
        mesh.all_reduce(x, 4)
    return x.tolist()


def adasum(groups: MpiGroups) -> list[Any]:
    values = [[[1.0, 0, 2, 0]], [[1.0, 1, 0, 0]], [[0.0, 2, 0, 1]], [[-1.0, 0, 1, 1]]]
    tensors = [torch.tensor(v) for v in values[groups.rank]] + [torch.ones(3), torch.empty(0)]
    return floats(adasum_all_reduce(*tensors, groups=groups))


def messages(groups: MpiGroups) -> list[Any]:
    options = {"tag": 2, "element_types": (FLOAT, INT64), "groups": groups}
    results = []
    for known in (((3, 2), (4,)), ((None, 2), (4,))):
        if groups.rank == 0:
            x = torch.arange(6.0).reshape(3, 2)
            send(True, 1, x, torch.arange(4), in_shapes=((), (), *known), **options)
        else:
            types = ((9, ()), (FLOAT, known[0]), (INT64, known[1]))
            taken = recv(True, 0, out_types=types, device=torch.device("cpu"), **options)
            results.append([value.tolist() for value in taken])
    return results


def silent(groups: MpiGroups) -> list[str]:
    if groups.rank == 1:
        time.sleep(3)
        return []
    transfers = [
        lambda: groups.recv(torch.empty(4), 1, 0),
        lambda: groups.exchange(torch.ones(4), torch.empty(4), 1),
    ]
    found = []
    for transfer in transfers:
        try:
            transfer()
        except TimeoutError as error:
            found.append(str(error))
    return found


def killed(groups: MpiGroups) -> None:
    if groups.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    groups.recv(torch.empty(4), 1, 0)


if __name__ == "__main__":
    work = globals()[sys.argv[1]]
    groups = MpiGroups(timeout=float(sys.argv[2]))
    result = json.dumps(work(groups))
    (pathlib.Path(sys.argv[3]) / str(groups.rank)).write_text(result)
    if work is silent:
        os._exit(0)  # a request is left over, for which an orderly end would wait
    groups.close()
