"""Stock vLLM serves a small untied model, its table on the host or on the device: greedy tokens and device memory.

    python tests/gpu/whole_model.py host|device [--eager] [--sleep] [--json FILE]

Then an update of the weights as verl makes one at every step: the same weights again, from the host, which must change
no token, move no table and, with the table on the host, take no device memory. `--sleep`: also through sleep levels 1
and 2, the second with a reload of the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "vllm"))
import tiny

VOCABULARY, HIDDEN, LAYERS = 131_072, 1024, 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("where", choices=("host", "device"))
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--sleep", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["VLLM_HOST_EMBED_TABLE"] = "1" if options.where == "host" else "0"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.checkpoint(Path(folder), vocabulary=VOCABULARY, hidden=HIDDEN, layers=LAYERS)
        report = {"where": options.where, "versions": {name: version(name) for name in ("torch", "vllm")}}
        report |= _serve(model, options)
    text = json.dumps(report, indent=2)
    print(text if len(text) < 6000 else text[:6000])
    if options.json:
        options.json.write_text(text + "\n", "utf-8")
    return 0


def _serve(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    from vllm import LLM
    from vllm import SamplingParams

    llm = LLM(
        model=str(model),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=1024,
        kv_cache_memory_bytes=2**30,  # nothing is profiled, so other processes may use the device
        enforce_eager=options.eager,
        enable_prefix_caching=False,
        enable_sleep_mode=options.sleep,
        seed=0,
        **json.loads(os.environ.get("WHOLE_MODEL_ARGUMENTS", "{}")),
    )
    ids = [[3 + (i * 7919 + j * 104_729) % (VOCABULARY - 3) for j in range(24)] for i in range(12)]
    prompts = [{"prompt_token_ids": each} for each in ids]
    greedy = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)

    def tokens() -> list[list[int]]:
        return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, greedy, use_tqdm=False)]

    report: dict[str, Any] = {"mode": "eager" if options.eager else "compiled and captured"}
    [report["weights"]] = llm.collective_rpc(_weights)
    report["tokens"] = tokens()
    report["again"] = tokens() == report["tokens"]
    [report["update"]] = llm.collective_rpc(_update, args=(str(model),))
    report["update"]["same_tokens"] = tokens() == report["tokens"]
    if options.sleep:
        report["sleep"] = {}
        for level in (1, 2):
            llm.sleep(level=level)
            if level == 1:
                llm.wake_up()
            else:
                llm.wake_up(tags=["weights"])
                llm.collective_rpc("reload_weights")
                llm.wake_up(tags=["kv_cache"])
            [weights] = llm.collective_rpc(_weights)
            report["sleep"][str(level)] = {
                "same_tokens": tokens() == report["tokens"],
                "same_address": weights["address"] == report["weights"]["address"],
            }
    return report


def _update(worker: Any, folder: str) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    model, device = worker.model_runner.model, worker.device
    fresh = load_file(Path(folder) / "model.safetensors")
    before, address = torch.cuda.memory_allocated(), _weights(worker)["address"]
    torch.cuda.reset_peak_memory_stats()
    model.load_weights(iter(fresh.items()))
    process_weights_after_loading(model, worker.model_config, device)
    return {
        "device_bytes_taken": torch.cuda.max_memory_allocated() - before,
        "same_address": _weights(worker)["address"] == address,
    }


def _weights(worker: Any) -> dict[str, Any]:
    import torch

    model = worker.model_runner.model
    table = next(each for name, each in model.named_modules() if name.endswith("embed_tokens"))
    device = sum(each.nbytes for each in model.parameters() if each.device.type != "cpu")
    return {
        "class": type(table).__name__,
        "table_device": str(table.weight.device),
        "pinned": table.weight.is_pinned() if table.weight.is_cpu and torch.cuda.is_available() else False,
        "table_bytes": table.weight.nbytes,
        "address": table.weight.data_ptr(),
        "parameter_bytes_on_device": device,
        "loading_took_bytes": int(getattr(worker.model_runner, "model_memory_usage", 0)),
        "allocated_bytes": int(torch.cuda.memory_allocated()) if torch.cuda.is_available() else 0,
    }


if __name__ == "__main__":
    sys.exit(main())
