"""One process of an MPI world: runs some of the functions below and writes the results as JSON.

Started by ``mpiexec -n 2 python mpi_member.py NAMES TIMEOUT FOLDER DEVICE``, names with commas
between them; the tensors of the collectives and messages are on the device.
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
# laid end to end and cut into equal shares: 64 elements between two ranks, 32 among four
SHAPES = {2: [(5, 10), (14,), (2, 8)], 4: [(4, 8), (20,), (12,), (2, 16), (1, 30)]}
OWNERS = {2: [0, 0, 1], 4: [0, 1, 1, 2, 3]}
VECTORS = [[1.0, 0, 2, 0], [1.0, 1, 0, 0], [0.0, 2, 0, 1], [-1.0, 0, 1, 1]]


def own(rank: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def floats(tensors: Any) -> list[Any]:
    return [tensor.double().tolist() for tensor in tensors]


def collectives(groups: MpiGroups, device: torch.device) -> dict[str, Any]:
    half = torch.tensor([1.0 + groups.rank], dtype=torch.float16, device=device)
    groups.all_reduce(half, 0)
    tensors = [tensor.to(device) for tensor in own(groups.rank, *SHAPES[groups.world_size])]
    results = {
        "reduce": nccl_all_reduce(*tensors, groups=groups),
        "gather": nccl_all_gather(*tensors, groups=groups),
        "scatter": nccl_reduce_scatter(*tensors, groups=groups),
        "half": [half],
    }
    assert {t.device.type for found in results.values() for t in found} == {device.type}
    return {name: floats(found) for name, found in results.items()}


def divided(groups: MpiGroups, _: torch.device) -> list[float]:
    """Of four ranks, two share each layer."""
    with MpiGroups(Mesh(4, 2, 2), timeout=groups.timeout) as mesh:
        x = torch.tensor([10.0**mesh.rank])
        mesh.all_reduce(x, 4)
    return x.tolist()


def adasum(groups: MpiGroups, device: torch.device) -> list[Any]:
    tensors = [torch.tensor(VECTORS[groups.rank]), torch.ones(3), torch.empty(0)]
    return floats(adasum_all_reduce(*[t.to(device) for t in tensors], groups=groups))


def messages(groups: MpiGroups, device: torch.device) -> list[Any]:
    """Each rank hands a message to the next one, with known shapes and with unknown ones."""
    options = {"tag": 2, "element_types": (FLOAT, INT64), "groups": groups}
    before, after = (groups.rank - 1) % groups.world_size, (groups.rank + 1) % groups.world_size
    results = []

    def give(known: Any) -> None:
        x = torch.arange(6.0, device=device).reshape(3, 2) + groups.rank
        send(True, after, x, torch.arange(4), in_shapes=((), (), *known), **options)

    def take(known: Any) -> None:
        types = ((9, ()), (FLOAT, known[0]), (INT64, known[1]))
        taken = recv(True, before, out_types=types, device=device, **options)
        assert taken[1].device.type == device.type
        results.append([value.tolist() for value in taken])

    for known in (((3, 2), (4,)), ((None, 2), (4,))):
        for part in (give, take) if groups.rank == 0 else (take, give):
            part(known)
    return results


def silent(groups: MpiGroups, _: torch.device) -> list[str]:
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


def killed(groups: MpiGroups, _: torch.device) -> None:
    if groups.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    groups.recv(torch.empty(4), 1, 0)


if __name__ == "__main__":
    names = sys.argv[1].split(",")
    groups = MpiGroups(timeout=float(sys.argv[2]))
    results = {name: globals()[name](groups, torch.device(sys.argv[4])) for name in names}
    (pathlib.Path(sys.argv[3]) / str(groups.rank)).write_text(json.dumps(results))
    if "silent" in names:
        os._exit(0)  # a request is left over, for which an orderly end would wait
    groups.close()
