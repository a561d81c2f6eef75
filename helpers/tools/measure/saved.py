"""What a forward pass keeps for the backward pass, layer by layer: each storage once, charged to the layer
that asked autograd to keep it."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from torch.autograd.graph import saved_tensors_hooks

from .internals import storage_key, storages_among

if TYPE_CHECKING:
    import torch


class SavedActivations:
    """Counts what a forward pass keeps for the backward pass, as a context manager around it.

    Args:
        module: the model, or a DeepSpeed engine.

    Attributes:
        by_layer: {qualified name of a submodule: bytes}; "" is the module itself.  Parameters and the
            module's inputs are not counted.
        sizes: bytes of each tensor's storage, in the order in which they were kept.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = getattr(module, "module", module)
        self.by_layer, self.sizes = Counter(), []

    def under(self, name: str) -> int:
        """Bytes kept by a submodule and everything inside it."""
        layers = self.by_layer.items()
        return sum(size for layer, size in layers if layer == name or layer.startswith(f"{name}."))

    @property
    def total(self) -> int:
        return sum(self.by_layer.values())

    def __enter__(self):
        self._seen = {storage_key(storage) for storage in storages_among(*self.module.parameters())}
        self._alive, self._stack, self._hooks = [], [], ExitStack()
        for name, part in self.module.named_modules():
            enter = partial(self._enter, name)
            self._hooks.enter_context(part.register_forward_pre_hook(enter, with_kwargs=True))
            self._hooks.enter_context(part.register_forward_hook(self._leave, always_call=True))
        self._hooks.enter_context(saved_tensors_hooks(self._keep, lambda tensor: tensor))
        return self

    def _enter(self, name, module, args, kwargs):
        if not self._stack:
            self._seen |= {storage_key(storage) for storage in storages_among(args, kwargs)}
        self._stack.append(name)

    def _leave(self, module, args, output):
        self._stack.pop()

    def _keep(self, tensor):
        name = self._stack[-1] if self._stack else ""
        for storage in storages_among(tensor):
            if (key := storage_key(storage)) not in self._seen:
                self._seen.add(key)
                self._alive.append(storage)  # its address must not be given to another one while we count
                self.by_layer[name] += storage.nbytes()
                self.sizes.append(storage.nbytes())
        return tensor

    def __exit__(self, *problem):
        self._hooks.close()
        del self._seen, self._alive, self._stack, self._hooks, self.module  # what is left is plain data
