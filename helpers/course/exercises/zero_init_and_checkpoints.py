"""Answers of lesson 10: partitioned construction, and a resume that forgets nothing; the mistakes that people
make there."""

import io

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.engine import Build, Exercise, RankExercise
from helpers.course.exercises.guesses import guess
from helpers.tools.theory.construction import largest_built_in_parts

__all__ = ["RunState", "change_a_weight", "constructor", "guess", "keep_shard", "largest_in_parts"]


# --- a shard of each parameter


class _Fresh(nn.Module):
    """A module as its constructor leaves it: own parameters of several sizes and dtypes, and a child that was
    dealt with before."""

    def __init__(self, seed, ranks, rank):
        super().__init__()
        random = torch.Generator().manual_seed(
            1000 * (seed % 10**6) + rank
        )  # every rank has drawn other numbers
        self.child = nn.Linear(3, 2)
        shapes = {"weight": (5, 2 * ranks + 1 + seed % 3), "bias": (3 * ranks,), "scale": (1,)}
        for name, shape in shapes.items():
            dtype = torch.bfloat16 if name == "bias" else torch.float32
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=random).to(dtype)))


def _sharded(function, seed):
    """What is left of each parameter, and this rank's shard; and that a child's parameters stay as they
    are."""
    import deepspeed.comm as comm

    module, found = _Fresh(seed, comm.get_world_size(), comm.get_rank()), {}
    before = dict(module.named_parameters(recurse=False))
    child = module.child.weight.detach().clone()
    try:
        function(module)
    except IndexError as error:
        if "tuple index" not in str(error):  # else there were fewer parts than ranks
            raise
        return {"what your function raised": f"IndexError: {error}"}
    found["what your function raised"] = "nothing"
    for name, old in before.items():
        parameter, shard = getattr(module, name), getattr(getattr(module, name), "shard", None)
        found[f"the shape of {name}.data afterwards"] = str(tuple(parameter.shape))
        found[f"{name} has a shard"] = isinstance(shard, torch.Tensor)
        if not isinstance(shard, torch.Tensor):
            continue
        found[f"the shape of {name}.shard"] = str(tuple(shard.shape))
        found[f"{name}.shard"] = shard.detach().clone()
        found[f"the dtype of {name}.shard"] = str(shard.dtype)
        found[f"elements of memory that {name}.shard keeps"] = (
            shard.untyped_storage().nbytes() // shard.element_size()
        )
        found[f"elements of memory that {name} itself keeps"] = (
            parameter.untyped_storage().nbytes() // parameter.element_size()
        )
        found[f"{name}.shard belongs to no graph of autograd"] = not shard.requires_grad
        found[f"{name}.full_shape"] = str(tuple(getattr(parameter, "full_shape", ())))
        found[f"{name} is the same parameter as before"] = parameter is old
    found["the child's weight is as it was"] = module.child.weight.shape == child.shape and bool(
        (module.child.weight == child).all()
    )
    return found


def _keep(
    broadcast=True,
    pad="end",
    which="own",
    clone=True,
    release="empty",
    own=True,
    shape="before",
    dtype=None,
    detach=True,
    new=False,
):
    """A way to keep a shard that makes the mistake that is named; without one it is right."""

    def keep_shard(module):
        import deepspeed.comm as comm

        rank, ranks = comm.get_rank(), comm.get_world_size()
        for name, parameter in list(module.named_parameters(recurse=not own)):
            full = parameter.shape
            if broadcast:
                comm.broadcast(parameter.data, 0)
            flat = (parameter.detach() if detach else parameter).flatten()
            if dtype is not None:
                flat = flat.to(dtype)
            if pad == "end":
                missing = -flat.numel() % ranks
                flat = F.pad(flat, (0, missing)) if missing else flat
            if which == "interleaved":
                part = flat[rank::ranks]
            elif pad == "floor":
                size = flat.numel() // ranks
                part = flat[rank * size : (rank + 1) * size]
            elif pad == "chunked":
                part = flat.chunk(ranks)[rank]
            elif pad == "never":
                size = -(-flat.numel() // ranks)
                part = flat[rank * size : (rank + 1) * size]
            else:
                part = flat.chunk(ranks)[0 if which == "first" else rank]
            parameter.shard = part.clone() if clone else part
            if release == "empty":
                parameter.data = parameter.data.new_empty(0)
            elif release == "slice":
                parameter.data = parameter.data.flatten()[:0]
            elif release == "rows":
                parameter.data = parameter.data[:0]
            parameter.full_shape = full if shape == "before" else parameter.shape
            if new:
                other = nn.Parameter(parameter.data)
                other.shard, other.full_shape = parameter.shard, full
                setattr(module, name, other)

    return keep_shard


keep_shard = Build(
    "keep_shard",
    _sharded,
    mistakes={
        "every rank has drawn other numbers: broadcast rank 0's before you cut": _keep(broadcast=False),
        "that is a view of the flattened tensor and keeps all of its memory alive: `.clone()` it": _keep(
            clone=False
        ),
        "the parameter is still there in full: let its `.data` be an empty tensor": _keep(release="never"),
        "a slice of no elements still keeps the whole tensor's memory alive: take a new empty tensor": _keep(
            release="slice"
        ),
        "a slice of no rows still keeps the whole tensor's memory alive, and its shape is not "
        "(0,): `.data.new_empty(0)`": _keep(release="rows"),
        "others, such as an optimizer, refer to the parameter: keep the object and change its `.data`": _keep(
            new=True
        ),
        "without padding the last rank's shard is shorter, or there is none: pad with zeros to a "
        "multiple of N first": _keep(pad="never"),
        "without padding `chunk` makes fewer parts than there are ranks: pad with zeros to a "
        "multiple of N first": _keep(pad="chunked"),
        "rounded down, the last elements belong to nobody: round the shard's size up, and pad": _keep(
            pad="floor"
        ),
        "that is rank 0's shard on every rank": _keep(which="first"),
        "a shard is a range of neighbouring elements, not every N-th": _keep(which="interleaved"),
        "a child's parameters were dealt with when the child was built: `parameters(recurse=False)`": _keep(
            own=False
        ),
        "the shape was taken after the parameter had been emptied": _keep(shape="after"),
        "a shard keeps the dtype of its parameter": _keep(dtype=torch.float32),
        "the shard must not be part of a graph of autograd: `detach()` first": _keep(detach=False),
    },
    praise="each rank keeps its own range of rank 0's values, and nothing else of the tensor stays alive",
)


# --- a constructor that goes on


class _Base(nn.Module):
    def __init__(self, width, *, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), value))


class _Derived(_Base):
    def __init__(self, width):
        super().__init__(width, value=2.0)
        self.extra = nn.Parameter(torch.ones(3))


class _Outer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = _Base(width, value=3.0), _Derived(width)
        self.own = nn.Parameter(torch.ones(width))


def _constructed(function, seed):
    """Which modules are handed on, in which order and in which state; by position, by keyword, nested and
    derived."""
    width, kinds = 2 + seed % 5, (_Base, _Derived, _Outer)
    builds = {"a base class": lambda: _Base(width), "a keyword": lambda: _Base(width, value=4.0)}
    builds |= {"a derived class": lambda: _Derived(width), "a module with children": lambda: _Outer(width)}
    originals, found = {kind: kind.__init__ for kind in kinds}, {}
    try:
        made = function(_Base, originals[_Base], lambda module: None)
        found["what the call of your function itself raises"] = "nothing"
    except Exception as error:
        return {"what the call of your function itself raises": type(error).__name__}
    found["your function returns a function"] = callable(made)
    if not callable(made):
        return found
    for case, make in builds.items():
        seen = []

        def then(module, seen=seen):
            parameters = (
                module.named_parameters(recurse=False)
                if isinstance(module, nn.Module) and "_parameters" in vars(module)
                else ()
            )
            seen.append(
                [
                    type(module).__name__.strip("_"),
                    *(f"{name} {parameter.sum().item():g}" for name, parameter in parameters),
                ]
            )

        try:
            for kind, build in originals.items():
                kind.__init__ = function(kind, build, then)
            make()
            failed = ""
        except Exception as error:
            failed = type(error).__name__
        finally:
            for kind, build in originals.items():
                kind.__init__ = build
        found[f"the error while {case} is built"] = failed or "none"
        found[f"modules handed on while {case} is built"] = len(seen)
        found[f"what is handed on while {case} is built"] = [part for one in seen for part in one]
    return found


def _built(order="after", exact=True, options=True, hands="module", builds="build", returns=False):
    """A constructor that makes the mistake that is named; without one it is right."""

    def constructor(kind, build, then):
        def init(module, *arguments, **named):
            if not options and named:
                raise TypeError("init() got an unexpected keyword argument")
            if order == "before":
                then(module)
            if builds == "build":
                build(module, *arguments, **named)
            elif builds == "without the module":
                build(*arguments, **named)
            elif builds == "itself":
                kind.__init__(module, *arguments, **named)
            if order == "after" and (type(module) is kind or not exact):
                then(kind if hands == "kind" else module)
            return module if returns else None

        return init

    return constructor


def _hands_nothing_on(kind, build, then):
    return build


def _builds_at_once(kind, build, then):
    build()
    return build


def _calls_its_own(kind, build, then):
    what_it_returns = None
    return what_it_returns


constructor = Build(
    "constructor",
    _constructed,
    mistakes={
        "before its constructor has run a module has no parameters: build first": _built(order="before"),
        "a derived class calls the constructor of its parent, whose end is not the module's: "
        "compare `type(module)` with `kind`": _built(exact=False),
        "constructors are given keywords too: take `*arguments, **options` and hand both on": _built(
            options=False
        ),
        "`then` wants the module that was built, not its class": _built(hands="kind"),
        "the module was never built: call `build(module, ...)`": _built(builds="never"),
        "a constructor takes the module itself first: `build(module, *arguments, **options)`": _built(
            builds="without the module"
        ),
        "`kind.__init__` is the new constructor by now and calls itself for ever: call `build`": _built(
            builds="itself"
        ),
        "nothing is handed on: the new constructor must call `then(module)`": _hands_nothing_on,
        "a constructor returns nothing, else Python refuses: leave out `return module`": _built(returns=True),
        "nothing is to be built yet: define a function that builds when it "
        "is called, and return that": _builds_at_once,
        "`constructor` is to return the function `init` itself, not what it returns": _calls_its_own,
    },
    praise="whoever builds a model need not know that somebody takes each module away "
    "as soon as it is complete",
)


# --- what a resume must not forget


class _Batches:
    def __init__(self, seed, rank):
        self.position, self.seed, self.rank = 0, seed, rank

    def next(self):
        random = torch.Generator().manual_seed(self.seed % 10**6 + 1000 * self.position + self.rank)
        self.position += 1
        return torch.randn(4, 6, generator=random)


class _Rises:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, step):
        return min(1.0, (step + 1) / self.steps)


def _a_run(seed, rank):
    """A model with dropout, its optimizer, a schedule and batches."""
    random = torch.Generator().manual_seed(seed % 10**6)
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.copy_(torch.randn(3, 6, generator=random))
        model.bias.zero_()
    adam = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, adam, torch.optim.lr_scheduler.LambdaLR(adam, _Rises(5 + seed % 4)), _Batches(seed, rank)


def _go_on(model, adam, schedule, batches, steps):
    """Steps of training; the losses, the learning rates, and the positions of the batches."""
    losses, rates, positions = [], [], []
    for _ in range(steps):
        positions.append(batches.position)
        rates.append(adam.param_groups[0]["lr"])
        loss = model(F.dropout(batches.next(), 0.3)).square().mean()
        loss.backward()
        adam.step()
        adam.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return losses, rates, positions


def _resumed(kind, seed):
    """Steps after a resume, where weights and optimizer are put back already; every rank has drawn other
    numbers before."""
    import deepspeed.comm as comm

    rank = comm.get_rank()
    torch.manual_seed(seed % 10**6 + 7 * rank)
    done = 2 + seed % 2
    model, adam, schedule, batches = _a_run(seed, rank)
    _go_on(model, adam, schedule, batches, done)
    state, kept = kind(schedule, batches).state_dict(), io.BytesIO()
    if not isinstance(state, dict):
        return {"state_dict returns a dict": False}
    found = {"state_dict returns a dict": True}
    try:
        torch.save({"weights": model.state_dict(), "adam": adam.state_dict(), "rest": state}, kept)
        found["the state can be written to a file"] = True
    except Exception:
        return found | {"the state can be written to a file": False}
    torch.manual_seed(seed % 10**6 + 1)  # another process, whose generator is elsewhere
    kind(*_a_run(seed, rank)[2:]).state_dict()  # what is kept outside of the dict is not what it was
    kept.seek(0)
    read = torch.load(kept, weights_only=False)
    model, adam, schedule, batches = _a_run(seed, rank)
    model.load_state_dict(read["weights"])
    adam.load_state_dict(read["adam"])
    kind(schedule, batches).load_state_dict(read["rest"])
    losses, rates, positions = _go_on(model, adam, schedule, batches, 3)
    found["positions of the three batches after the resume"] = positions
    found["learning rates of the three steps after the resume"] = rates
    found["losses of the three steps after the resume"] = losses
    found["the next random numbers after the resume"] = torch.rand(3)
    return found


def _state(random="own", rates=True, position="kept"):
    """A class that makes the mistake that is named; without one it is right."""
    outside = {}

    class RunState:
        def __init__(self, schedule, batches):
            self.schedule, self.batches = schedule, batches

        def state_dict(self):
            import torch.distributed as dist

            numbers = torch.get_rng_state()
            if random == "rank 0's":
                dist.broadcast(numbers, 0)
            outside["random"] = numbers
            state = {
                "schedule": self.schedule.state_dict(),
                "position": self.batches.position,
                "random": numbers,
            }
            return state | {"seed": torch.initial_seed()}

        def load_state_dict(self, state):
            if rates:
                self.schedule.load_state_dict(state["schedule"])
            if position != "forgotten":
                self.batches.position = (
                    state["position"] + {"kept": 0, "one too far": 1, "one too early": -1}[position]
                )
            if random in ("own", "rank 0's"):
                torch.set_rng_state(state["random"])
            elif random == "outside":
                torch.set_rng_state(outside["random"])
            elif random in ("seeded", "seeded as at first"):
                torch.manual_seed(state["seed"] if random == "seeded as at first" else 0)

    return RunState


class _KeepsObjects:
    def __init__(self, schedule, batches):
        self.schedule, self.batches = schedule, batches

    def state_dict(self):
        return {"schedule": lambda: self.schedule}

    def load_state_dict(self, state):
        pass


RunState = Build(
    "RunState",
    _resumed,
    mistakes={
        "nothing was put back": _state(random="forgotten", rates=False, position="forgotten"),
        "the data begin anew: keep the position of the batches": _state(position="forgotten"),
        "`position` counts the batches that were taken, so it is the next one already: put it "
        "back as it was": _state(position="one too far"),
        "the last batch before the break is trained on again: put `position` back as it was": _state(
            position="one too early"
        ),
        "the schedule begins anew: it has a `state_dict()` and a `load_state_dict(state)`": _state(
            rates=False
        ),
        "dropout draws other numbers than in the unbroken run: keep the state "
        "of torch's random generator": _state(random="forgotten"),
        "a seed begins a new series of numbers; the unbroken run is in the middle of one: keep "
        "the generator's state": _state(random="seeded"),
        "the first seed begins the series anew; the unbroken run is in the "
        "middle of it: keep the state": _state(random="seeded as at first"),
        "every rank's generator is elsewhere: each keeps its own state, not rank 0's": _state(
            random="rank 0's"
        ),
        "another process finds only what is in the dict: put the generator's state into it, not "
        "into a variable": _state(random="outside"),
        "position and schedule begin anew": _state(rates=False, position="forgotten"),
        "the schedule begins anew, and the random numbers are others": _state(
            random="forgotten", rates=False
        ),
        "the data begin anew, and the random numbers are others": _state(
            random="forgotten", position="forgotten"
        ),
        "keep plain values and tensors, which can be written to a file": _KeepsObjects,
    },
    praise="the steps after the break are those of the run that was never broken, on every rank"
    " (checked on the CPU: on a GPU dropout draws from the device's generator, whose state has "
    "to be kept as well)",
)


# --- formulas

largest_in_parts = Exercise(
    reference=largest_built_in_parts,
    cases=({"memory": 1e11, "ranks": 64, "largest": 6e8}, {"memory": 2e11, "ranks": 1024, "largest": 12e9}),
    mistakes={
        "that is what one GPU holds of it; the model "
        "has its shards on all ranks": lambda memory, ranks, largest: (memory - 6 * largest) / 2,
        "parts are of the model in bf16": lambda memory, ranks, largest: (memory - 6 * largest) * ranks / 4,
        "to build takes the parameters alone; sixteen "
        "bytes are what training holds": lambda memory, ranks, largest: (memory - 6 * largest) * ranks / 16,
        "a matrix is made in fp32 and cast: six bytes for a moment": lambda memory, ranks, largest: (
            (memory - 2 * largest) * ranks / 2
        ),
        "in fp32, and its cast in bf16 beside it: six bytes for a moment": lambda memory, ranks, largest: (
            (memory - 4 * largest) * ranks / 2
        ),
        "for a moment the largest tensor is there in full beside the shards": lambda memory, ranks, largest: (
            memory * ranks / 2
        ),
        "every rank makes the largest tensor, so each has so much less": lambda memory, ranks, largest: (
            (memory * ranks - 6 * largest) / 2
        ),
        "that is the model built in full": lambda memory, ranks, largest: memory / 2,
    },
    praise="a rank holds its shards of the model, and for a moment what it is about to cut up",
)


def _part_of(values, rank, ranks):
    return values[rank * 8 // ranks : (rank + 1) * 8 // ranks]


class _WeightExercise(RankExercise):
    def verdict(self, reports, given):
        """As for any exercise, and a word where all ranks return small numbers as a layer draws them, which
        no one was given."""
        words = super().verdict(reports, given)
        drawn = all(
            isinstance(got, (list, tuple)) and got and all(0 < abs(value) < 1 for value in got)
            for got in reports
        )
        built = (
            "those are the values that the layer was built with: without `modifier_rank` what you "
            "write is dropped"
        )
        return f"{words}; {built}" if words and drawn else words


change_a_weight = _WeightExercise(
    inputs=lambda ranks, random: [{"values": random.sample(range(1, 100), 8)} for _ in range(ranks)],
    expected=lambda rank, given: _part_of(given[0]["values"], rank, len(given)),
    mistakes={
        "that is the weight in full: your shard is in `ds_tensor`": lambda rank, given: given[0]["values"],
        "those are this rank's own values: rank 0's are asked for, and "
        "`modifier_rank` says whose count": lambda rank, given: _part_of(
            given[rank]["values"], rank, len(given)
        ),
        "every rank's shard begins where the one before ends": lambda rank, given: _part_of(
            given[0]["values"], 0, len(given)
        ),
    },
    praise="only while it is gathered is the weight there to be changed, and on release rank 0's values "
    "go into every rank's shard",
)
