#!/usr/bin/env python
"""Write the reference values that the engines' logits are tested against.

Runs `transformers.LlamaForCausalLM` in float32 on the dequantized weights of SmolLM2 and
stores, for five prompts and 64 greedy tokens each, what a test needs to compare with: the token
ids, and of every step's logits the norm and the sixteen largest with their ids.

Needs packages that the project itself does not::

    pip install torch transformers
    python scripts/make_logit_reference.py tests/engines/data/smollm2_logits.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers

import tokenizer
from blink_numba.models import Model, load_model

STEPS = 64
TOP = 16
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue, and give one everyday example of the same effect.",
    "def fibonacci(n):",
    "Liste drei Tiere auf, die im Meer leben, und beschreibe jedes in einem Satz. 🐙",
)


def reference_model(model: Model) -> transformers.LlamaForCausalLM:
    """The same weights in the library's model, float32."""
    config = model.config
    reference = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    weights = {name: torch.tensor(model.tensor(name)) for name in model.tensor_names()}
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"weights do not fit the reference: missing {missing}, unexpected {unexpected}")
    reference.tie_weights()
    return reference.float().eval()


def greedy(reference: transformers.LlamaForCausalLM, prompt: np.ndarray) -> dict[str, np.ndarray]:
    """Logits after the prompt and after each of the greedy tokens that follow."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    tokens, top_ids, top_logits, norms = [], [], [], []
    cache = None
    with torch.no_grad():
        for _ in range(STEPS):
            output = reference(ids, past_key_values=cache, use_cache=True)
            cache, logits = output.past_key_values, output.logits[0, -1]
            largest = torch.topk(logits, TOP)
            tokens.append(int(largest.indices[0]))
            top_ids.append(largest.indices.numpy())
            top_logits.append(largest.values.numpy())
            norms.append(float(torch.linalg.vector_norm(logits.double())))
            ids = torch.tensor([[tokens[-1]]])
    return {
        "prompt": prompt.astype(np.int32),
        "tokens": np.asarray(tokens, np.int32),
        "top_ids": np.asarray(top_ids, np.int32),
        "top_logits": np.asarray(top_logits, np.float32),
        "norms": np.asarray(norms, np.float64),
    }


def main() -> None:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    model = load_model("smollm2")
    vocabulary = tokenizer.load(model.tokenizer_source)
    reference = reference_model(model)
    arrays = {}
    for index, question in enumerate(QUESTIONS):
        prompt = vocabulary.apply_chat_template([{"role": "user", "content": question}])
        result = greedy(reference, np.asarray(prompt))
        arrays.update({f"{name}_{index}": values for name, values in result.items()})
        print(f"{question!r}: {vocabulary.decode(result['tokens'])!r}")
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, **arrays)


if __name__ == "__main__":
    main()
