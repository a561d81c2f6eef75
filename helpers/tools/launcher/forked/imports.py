"""What the forkserver imports for all ranks to come."""

import functools
import gc
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable
from types import FunctionType

# What a DeepSpeed job imports between launch and its first step; found with `python -X importtime`.
REQUIRED = ("torch", "deepspeed", "cloudpickle")
USEFUL = (  # another DeepSpeed version may lack some
    "torch._dynamo", "torch.profiler", "torch.distributed.tensor", "torch.utils.cpp_extension",
    "setuptools.command.build_ext", "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3", "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.pipe.engine", "deepspeed.module_inject.auto_ep_config",
    "deepspeed.module_inject.auto_ep_layer", "deepspeed.ops.op_builder.all_ops", "deepspeed.comm.mori",
)  # fmt: skip


def compiled_when_called(compiler: Callable) -> Callable:
    """`torch.compile` that leaves a function alone until it is called first: else torch imports all of its
    compiler when DeepSpeed decorates its Muon optimizer, which takes as long as importing torch."""

    def compile_function(function=None, **options):
        if function is None:
            return functools.partial(compile_function, **options)
        if not isinstance(function, FunctionType):
            return compiler(function, **options)
        compiled = functools.cache(lambda: compiler(function, **options))

        @functools.wraps(function)
        def call(*values, **names):
            return compiled()(*values, **names)

        return call

    return compile_function


def preload(names: Iterable[str]) -> dict[str, str]:
    """Import modules that the ranks are to share, and what is looked up in them; {name: traceback} of those
    that failed.

    No garbage is looked for meanwhile: nearly nothing is garbage, and to look takes a third of the time.
    What was imported is then frozen, so that no rank looks there either, which would copy its memory.
    """
    failed = {}
    gc.disable()
    try:
        torch = importlib.import_module("torch")
    except BaseException:
        return {"torch": traceback.format_exc()}
    compiler, torch.compile = torch.compile, compiled_when_called(torch.compile)
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except BaseException:
            failed[name] = traceback.format_exc()
    torch.compile = compiler
    gc.freeze()
    gc.enable()
    sys.stdout.flush()  # else every rank would write it again
    sys.stderr.flush()
    return failed
