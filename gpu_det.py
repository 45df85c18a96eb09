import torch
from onnxtrain.kernels.tensor.gather import gather_elements_grad, gather_grad
from onnxtrain.kernels.tensor.gather_nd import gather_nd_grad
from onnxtrain.kernels.tensor.scatter import scatter_elements, scatter_nd
g=torch.Generator("cuda").manual_seed(0)
for dtype in (torch.float32,torch.float16,torch.float64):
  for n,inner,rows_n in ((20000,8,50),(3000,8,50),(20000,64,5000)):
    dy=torch.randn(n,inner,generator=g,device="cuda").to(dtype); rows=torch.randint(0,rows_n,(n,),generator=g,device="cuda")
    el=rows[:,None].expand_as(dy); z=torch.zeros(rows_n,inner,device="cuda",dtype=dtype)
    flat=(el*inner+torch.arange(inner,device="cuda")).reshape(-1); v=dy.reshape(-1); z1=torch.zeros(rows_n*inner,device="cuda",dtype=dtype)
    def sorted_sum():
        s,o=torch.sort(flat,stable=True); c=v[o].double().cumsum(0); return c
    cand={
     "gather_grad":lambda: gather_grad([rows_n,inner],rows,dy),
     "nd":lambda: gather_nd_grad([rows_n,inner],rows[:,None],dy,deterministic=True),
     "el":lambda: gather_elements_grad(dy,[rows_n,inner],el,deterministic=True),
     "sc":lambda: scatter_elements(z,el,dy,reduction="add",deterministic=True),
     "scnd":lambda: scatter_nd(z,rows[:,None],dy,reduction="add",deterministic=True),
     "put1d":lambda: z1.clone().index_put_((flat,),v,accumulate=True),
     "putrow":lambda: z.clone().index_put_((rows,),dy,accumulate=True),
     "emb1":lambda: torch.ops.aten.embedding_dense_backward(v[:,None],flat,rows_n*inner,-1,False),
    }
    for k,f in cand.items():
        r=[f() for _ in range(8)]
        if not all(torch.equal(r[0],x) for x in r): print("NONDET",dtype,n,inner,rows_n,k)
        torch.use_deterministic_algorithms(True)
        r=[f() for _ in range(8)]
        if not all(torch.equal(r[0],x) for x in r): print("NONDET even with flag",dtype,n,inner,rows_n,k)
        torch.use_deterministic_algorithms(False)
    def t(f):
        for _ in range(3): f()
        torch.cuda.synchronize(); a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True); a.record()
        for _ in range(10): f()
        b.record(); torch.cuda.synchronize(); return round(a.elapsed_time(b)/10*1e3)
    print(dtype,n,inner,{k:t(f) for k,f in cand.items()})
def s1d():
    torch.use_deterministic_algorithms(True)
    r=z1.clone().scatter_add_(0,flat,v); torch.use_deterministic_algorithms(False); return r
r=[s1d() for _ in range(8)]; print("scatter_add 1d det flag", all(torch.equal(r[0],x) for x in r))
