import numpy as np
import torch

from gradients.emit import differentiated, run


def test_blocks_whose_sizes_only_a_run_can_tell() -> None:
    text = (
        "(double[1,4,4] x, int64[2] s, int64[2] b) => (double[1,1,A,B] y) { y = Col2Im(x, s, b) }"
    )
    generator = np.random.default_rng(0)
    x, d_y = generator.normal(size=(1, 4, 4)), generator.normal(size=(1, 1, 3, 3))
    sizes = {"s": np.array([3, 3]), "b": np.array([2, 2])}
    found = run(differentiated(text, "x"), x=x, **sizes, d_y=d_y)["x_grad"]
    leaf = torch.tensor(x, requires_grad=True)
    image = torch.nn.functional.fold(leaf, (3, 3), (2, 2))
    (true,) = torch.autograd.grad(image, leaf, torch.tensor(d_y))
    np.testing.assert_allclose(found, true.numpy(), rtol=1e-12)
