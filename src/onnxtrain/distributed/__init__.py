"""Who talks to whom: layouts of ranks, and process groups over torch.distributed or MPI."""
