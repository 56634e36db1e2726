"""A small checkpoint on disk: Nemotron, whose layers vLLM builds without its compiled library; random, no tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def checkpoint(
    folder: Path, *, tied: bool = False, vocabulary: int = 320, hidden: int = 64, layers: int = 1, seed: int = 7
) -> Path:
    heads = max(hidden // 64, 2)
    config = {
        "architectures": ["NemotronForCausalLM"],
        "model_type": "nemotron",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": 1024,
        "partial_rotary_factor": 0.5,
        "hidden_act": "relu2",
        "norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=draw) / columns**0.5).to(torch.bfloat16)

    def norm(name: str) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": torch.zeros(hidden), f"{name}.bias": torch.zeros(hidden)}

    weights = {"model.embed_tokens.weight": matrix(vocabulary, hidden), **norm("model.norm")}
    if not tied:
        weights["lm_head.weight"] = matrix(vocabulary, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        weights |= {f"{at}.self_attn.{name}_proj.weight": matrix(hidden, hidden) for name in "qkvo"}
        weights |= {f"{at}.mlp.up_proj.weight": matrix(2 * hidden, hidden)}
        weights |= {f"{at}.mlp.down_proj.weight": matrix(hidden, 2 * hidden)}
        weights |= norm(f"{at}.input_layernorm") | norm(f"{at}.post_attention_layernorm")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    as_bf16 = {name: each.to(torch.bfloat16).contiguous() for name, each in weights.items()}
    save_file(as_bf16, folder / "model.safetensors")
    return folder
