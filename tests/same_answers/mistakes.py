"""The mistakes to plant, by lesson."""

from tests.same_answers.planting import Mistake

MISTAKES = {
    "07": (
        Mistake(
            "gradients are summed over the ranks and never divided",
            "master.grad = mine.float() / comm.get_world_size()",
            "master.grad = mine.float()",
            ("zero_1_step = exercises.zero_1_step.check", "hand[dtype, ranks] = launch(by_hand"),
            "no",
        ),
    ),
}
