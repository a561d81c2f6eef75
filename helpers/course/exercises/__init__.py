"""The exercises: what a learner writes or guesses, and what is said to it.  A module for each subject.

A solution in ranks stands in its lesson alone.  The lesson hands it to the check, which edits its text into
the mistakes that people make.
"""

SUBJECTS = {  # a lesson's number, and its module here
    "00": "start_here",
    "01": "transformer_layers",
    "02": "training_memory",
    "03": "collectives",
    "04": "data_parallelism",
    "05": "tensor_parallelism",
    "06": "pipeline_parallelism",
    "07": "zero_1",
    "08": "zero_2",
    "09": "zero_3",
    "10": "zero_init_and_checkpoints",
    "12": "offload_and_lora",
    "13": "long_sequences",
    "15": "combining_parallelism",
    "16": "experts",
    "17": "planning",
    "18": "clusters",
    "fsdp": "fsdp",
}
