"""When ZeRO-3 has gathered which weight: after every operator, by DeepSpeed's own status of each."""

from __future__ import annotations

import torch
from helpers.course import models
from helpers.course.training.comparable import own_rows
from helpers.tools.measure.internals import TorchDispatchMode, is_gathered, is_partitioned, whole_shape


class GatheredWeights(TorchDispatchMode):
    """While it is entered, it notes after every operator which weight matrices of a model are gathered; the
    model is one after `deepspeed.initialize` at stage 3, else a ValueError says so.

    Attributes:
        gathered: {name of a matrix without ".weight": [whether it was gathered, after each operator]}.
        phases: {name: operators}, of what was `end`ed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        if not all(map(is_partitioned, model.parameters())):
            raise ValueError(
                "these parameters are not sharded: give the model after deepspeed.initialize with stage 3"
            )
        self.weights = {
            name.removesuffix(".weight"): weight
            for name, weight in model.named_parameters()
            if len(whole_shape(weight)) == 2
        }
        self.gathered, self.phases, self.operators = {name: [] for name in self.weights}, {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operators += 1
        for name, weight in self.weights.items():
            self.gathered[name].append(is_gathered(weight))
        return result

    def end(self, phase: str) -> None:
        """A phase of the step ends here; it began where the one before ended."""
        self.phases[phase] = self.operators - sum(self.phases.values())


def gathered_in_a_step(config: dict, size: models.GPTSize) -> dict[str, dict]:
    """The first step of a GPT by DeepSpeed's ZeRO-3, in a rank, with one micro-batch: {"gathered", "phases":
    forward, backward, step}, of `GatheredWeights`."""
    import deepspeed

    model = models.build(models.GPT, size)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    with GatheredWeights(model) as watch:
        loss = engine(*own_rows(0, engine.device, engine.train_batch_size()))
        watch.end("forward")
        engine.backward(loss)
        watch.end("backward")
        engine.step()
        watch.end("step")
    return {"gathered": watch.gathered, "phases": watch.phases}
