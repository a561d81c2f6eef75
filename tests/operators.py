"""What torch dispatches, counted: operators, and the bytes that they read and write."""

from collections import Counter

from helpers.tools.measure.internals import TorchDispatchMode, tensors_among

WRITES_ALONE = ("copy_", "fill_", "zero_")  # in place, without a look at what was there
GATHERS = (
    "embedding",
    "nll_loss_forward",
    "nll_loss_backward",
)  # which look at a few elements of what they are given
MADE_WITHOUT_WORK = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "detach",
    "_unsafe_view",
    "lift_fresh",
)


class Operators(TorchDispatchMode):
    """Counts operators that are no views, and the bytes of the tensors they read and write, by name and
    phase."""

    def __init__(self):
        super().__init__()
        self.phase, self.count, self.bytes = "", Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        is_view = any(
            one.alias_info is not None and not one.alias_info.is_write for one in function._schema.returns
        )
        if not is_view and name not in MADE_WITHOUT_WORK and function.namespace == "aten":
            read = [] if name in GATHERS else tensors_among(args, kwargs)[1 if name in WRITES_ALONE else 0 :]
            self.count[self.phase, name] += 1
            self.bytes[self.phase, name] += sum(
                one.numel() * one.element_size() for one in [*read, *tensors_among(result)]
            )
        return result

    def total(self, phase, leave_out=(), count=False):
        found = self.count if count else self.bytes
        return sum(
            number for (when, name), number in found.items() if when == phase and name not in leave_out
        )
