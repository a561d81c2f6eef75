"""The lessons' numbers: what they were in the first edition, and which are kept for lessons to come."""

from __future__ import annotations

FIRST_EDITION = {  # {a notebook's name in the first edition: its name today}, both without their ending
    "11_offload_and_lora": "12_offload_and_lora",
    "12_long_sequences": "13_long_sequences",
    "13_combining_parallelism": "15_combining_parallelism",
    "14_experts": "16_experts",
    "15_planning": "17_planning",
    "16_clusters": "18_clusters",
}
TO_COME = {  # {a number without a lesson: (its title, the lesson that holds it until then)}
    "11": ("Checkpoints and resuming", "10"),
    "14": ("Machines and their cable", "18"),
}


def today(number: str) -> str:
    """The number today of a lesson of the first edition: "12" for "11"."""
    return {old[:2]: new[:2] for old, new in FIRST_EDITION.items()}.get(number, number)


def before(number: str, previous: str | None) -> list[str]:
    """Numbers to come that stand between a lesson's number and the previous lesson's."""
    return [empty for empty in TO_COME if previous is not None and previous < empty < number]
