"""What several tests share."""

TINY_BUCKET = 20_000  # elements; small beside the models of the tests, so that they have several buckets


def adamw(**params):
    """DeepSpeed's key `optimizer` for torch's AdamW."""
    return {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True} | params}


def configuration(stage=0, *, bf16=True, micro_batch=1, accumulation=1, extra=None, **zero):
    """DeepSpeed's, with torch's AdamW and without clipping.

    Args:
        extra: keys beside those, a dict.
        zero: keys of `zero_optimization`, beside the stage.
    """
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "bf16": {"enabled": bf16},
        "optimizer": adamw(),
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": TINY_BUCKET,
            "overlap_comm": False,
            **zero,
        },
        **(extra or {}),
    }
