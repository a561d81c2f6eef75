"""Which class of transformers a model's configuration calls for, what its labels are, and how long a sequence
it takes.  What this command cannot rehearse is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..place import OURS
from .refusing import BadQuestion

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LABELS = {  # by transformers' list of classes: one label for each token, for each sequence, or its two ends
    "CAUSAL_LM": "tokens",
    "MASKED_LM": "tokens",
    "TOKEN_CLASSIFICATION": "tokens",
    "SEQUENCE_CLASSIFICATION": "sequences",
    "QUESTION_ANSWERING": "spans",
}
OTHER_INPUTS = ("vision", "image", "audio", "video")
# Their positions are computed, or learned as distances: no table ends.
COMPUTED = ("rope_parameters", "rope_theta", "alibi", "relative_attention")
# Their tables begin with the positions of padding.
PADDED = ("roberta", "camembert", "data2vec-text", "xmod", "longformer", "mpnet", "ibert", "esm")
OWN_FUNCTION = f"write a function that trains it, for {OURS}.rehearse"


def architecture(model: dict, shape: PreTrainedConfig) -> tuple[str, str, list[str]]:
    """(the name of a class, what its labels are, notes): the class that "architectures" names; else of an
    encoder that for masked words, and of any other model that for the next word.

    Args:
        model: the keys of a configuration.
        shape: the same as an object of transformers.
    """
    from transformers.models.auto import modeling_auto as auto

    def listed(task):
        return getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(kind)

    kind, names = model["model_type"], model.get("architectures") or [None]
    if not isinstance(names, list) or not isinstance(names[0], str | None):
        raise BadQuestion(f"architectures must be a list of names, not {names!r}")
    named, causal, masked = names[0], listed("CAUSAL_LM"), listed("MASKED_LM")
    decodes = named is not None and named == causal
    both = listed("IMAGE_TEXT_TO_TEXT") or listed("MULTIMODAL_LM")
    parts = [name for name in getattr(shape, "sub_configs", ()) if name.startswith(OTHER_INPUTS)]
    if (both or parts) and (not decodes or causal == both or not both):
        raise BadQuestion(f"{kind} takes more than text, and this command passes text alone: {OWN_FUNCTION}")
    two_halves = getattr(shape, "is_encoder_decoder", False) or listed("SEQ_TO_SEQ_CAUSAL_LM")
    if two_halves and not decodes:
        raise BadQuestion(f"{kind} is an encoder-decoder, and this command rehearses none: {OWN_FUNCTION}")
    classes = {listed(task): labels for task, labels in LABELS.items()}
    if named in classes and named is not None:
        return named, classes[named], [f"{named} alone is rehearsed, of {kind}"] if both else []
    is_encoder = masked and causal != masked and not getattr(shape, "is_decoder", False)
    default = masked if is_encoder else causal
    if default is None:
        raise BadQuestion(f"this command rehearses language models, and {kind} is none: {OWN_FUNCTION}")
    if named is None:
        return default, "tokens", [f"{kind} is an encoder: {masked} is rehearsed"] if is_encoder else []
    if "auto_map" in model or is_transformers(named):
        known = ", ".join(sorted(filter(None, classes)))
        raise BadQuestion(f"{named} is not rehearsed, but of {kind} {known}: {OWN_FUNCTION}")
    return default, "tokens", [f"transformers knows no {named}: {default} is rehearsed"]


def is_transformers(name: str) -> bool:
    import transformers

    return name in dir(transformers)


def longest(shape: PreTrainedConfig) -> tuple[int | None, bool]:
    """(tokens of the longest sequence that a model was made for, whether a table of positions ends there)."""
    shape = shape.get_text_config()
    most = getattr(shape, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None, False
    if any(kind in shape.model_type for kind in PADDED) and shape.pad_token_id is not None:
        most -= shape.pad_token_id + 1
    is_absolute = getattr(shape, "position_embedding_type", None) == "absolute"
    return most, is_absolute or not any(getattr(shape, name, None) for name in COMPUTED)
