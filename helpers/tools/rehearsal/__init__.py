"""Rehearsals: a rank of the real DeepSpeed at any scale, without memory and without the other ranks.

    from helpers import rehearse

    report = rehearse(train, ranks=1024, rank=517, device="cuda")   # what `launch(train, ranks=4)` runs

All of torch's and DeepSpeed's Python runs.  Tensors have shapes, types and devices but no numbers (`fake`),
and messages go nowhere (`patches`).  `gpu` poses as a GPU, `pipelines` carries shapes from rank to rank,
`rehearsing` has the call; the room `forecast` asks by rehearsals whether a training fits.
"""
