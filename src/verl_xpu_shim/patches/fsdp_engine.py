"""``fsdp_engine``: verl registers its FSDP engines for ``cuda`` and ``npu`` only, though nothing in them is.

The stock classes are registered as they are. Can go once verl registers them for ``xpu``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Change
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Defines

#: verl's model type -> the engine class in its FSDP module.
ENGINES: Final = {"language_model": "FSDPEngineWithLMHead", "value_model": "FSDPEngineWithValueHead"}
STRATEGIES: Final = ("fsdp", "fsdp2")
KEY: Final = ("xpu", "intel")


def _register(module: ModuleType, edit: Edit) -> None:
    registry = module.EngineRegistry
    for model_type, class_name in ENGINES.items():
        engine = getattr(module, class_name)
        for strategy in STRATEGIES:
            engines: dict[Any, Any] = registry._engines.get(model_type, {}).get(strategy, {})
            if KEY in engines or KEY[0] in engines:
                edit.notes.append(f"{model_type}/{strategy}: already registered")
                continue
            # The registry asserts on a key that exists, so a plugin that comes later keeps out by itself.
            registry.register(model_type, strategy, device=KEY[0], vendor=KEY[1])(engine)
            table = registry._engines[model_type][strategy]
            change = Change(registry, f"{model_type}/{strategy}{KEY}", None, engine)
            edit.changed(change, lambda table=table: table.pop(KEY, None))  # type: ignore[misc]


CAPABILITY: Final = Capability(
    name="fsdp_engine",
    required=True,
    summary="registers the FSDP/FSDP2 engines, language and value model, for (`xpu`, `intel`)",
    targets=(
        Target(
            "verl.workers.engine.fsdp.transformer_impl",
            _register,
            (Defines(("EngineRegistry", *ENGINES.values())),),
        ),
    ),
)
