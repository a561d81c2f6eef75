"""Rehearsals: a rank of the real DeepSpeed at any scale, without memory and without the other ranks.

    from helpers import rehearse

    report = rehearse(train, ranks=1024, rank=517, device="cuda")   # what `launch(train, ranks=4)` runs

All of torch's and DeepSpeed's Python runs.  What is left out is what needs memory or other machines: tensors
have a shape, a type and a device but no numbers (`fake`), and messages go nowhere (`patches`).  `gpu` poses
as a GPU, `pipelines` carries shapes from rank to rank, `inside` is what happens in the rehearsal's process,
`rehearsing` the call that starts one; `python -m helpers.tools.rehearsal` asks whether a training fits.
"""
