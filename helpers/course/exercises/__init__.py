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
    "11": "offload_and_lora",
    "12": "long_sequences",
    "13": "combining_parallelism",
    "14": "experts",
    "15": "planning",
    "16": "clusters",
    "fsdp": "fsdp",
}
