"""The error that scripts/ablation.py shows is the one a user would see first."""

from __future__ import annotations

import ablation

RAY = """
\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m UserWarning: torchtitan engine is not available: ModuleNotFoundError("No module")
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/verl/trainer/main_ppo.py", line 100, in run
ray.exceptions.RayTaskError(RuntimeError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=7, ip=192.0.2.2)
  File "/venv/lib/python3.11/site-packages/verl/workers/engine_workers.py", line 198, in _postprocess_output
    torch.distributed.all_reduce(loss, op=torch.distributed.ReduceOp.AVG)
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3000, in all_reduce
RuntimeError: average operation is not supported for the scheduler path
ValueError: a later one
"""


def test_the_first_error_and_the_line_of_verl_that_it_came_through() -> None:
    expected = (
        "RuntimeError: average operation is not supported for the scheduler path",
        "verl/workers/engine_workers.py:198",
    )
    assert ablation.first_error(RAY) == expected
    prefixed = RAY.replace("\n", "\n\x1b[36m(WorkerDict pid=8)\x1b[0m ")
    assert ablation.first_error(prefixed) == expected
    assert ablation.first_error("step:1 - critic/score/mean:0.3") == ("", "")


def test_a_run_that_hangs_or_ends_well_says_so() -> None:
    hung = ablation.Result(124, 420, 0, ["expected steps 1 to 2, found []"], "", "")
    assert "It hangs" in ablation.row("platform", hung)
    assert "It trains. FSDP2 asks" in ablation.row("fsdp2_reduce_avg", ablation.Result(0, 90, 2, [], "", ""))
