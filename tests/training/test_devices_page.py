"""The page on devices: its scripts run, its manifest fits together, its commands are ones that there are."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import yaml

from equimorph.training.cli import parser

PAGE = Path(__file__).parents[2].joinpath("docs", "devices.md").read_text()


def block(kind):
    """The one fenced block of a kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


def options(line):
    """What the command line makes of `equimorph train ...`; it refuses what it does not know."""
    return parser().parse_args(shlex.split(line, comments=True)[1:])


def test_commands_are_ones_that_there_are():
    lines = re.findall(r"^equimorph .*", PAGE, re.MULTILINE)
    assert len(lines) == 3
    found = [options(re.sub(r"\bENV\b", "BrockMirman-v0", line)) for line in lines]
    assert [(one.distributed, one.process_id) for one in found] == [(False, None), (True, 0), (True, 1)]


def test_slurm_script_begins_goes_on_and_asks_for_its_place_in_the_queue(tmp_path):
    """Run by bash, with stand-ins for SLURM that write down what they are told; `srun` ends as with SIGTERM."""
    for name, code in (("srun", 143), ("scontrol", 0)):
        command = tmp_path / name
        command.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/told\nexit {code}\n')
        command.chmod(0o755)
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run():
        done = subprocess.run(["bash", "-u"], input=block("bash"), text=True, env=os.environ | slurm, check=False)
        told = (tmp_path / "told").read_text().splitlines()
        (tmp_path / "told").unlink()
        assert done.returncode == 143
        assert told[1:] == ["scontrol requeue 7"]
        return options(told[0].removeprefix("srun "))

    begun, run_folder = run(), tmp_path / "runs" / "growth-7"
    assert (begun.env, begun.out, begun.resume, begun.distributed) == ("CellCount-v0", str(run_folder), None, True)
    (run_folder / "checkpoints").mkdir(parents=True)
    resumed = run()
    assert (resumed.env, resumed.out, resumed.resume, resumed.distributed) == (None, None, str(run_folder), True)
    assert "#SBATCH --signal=TERM@120" in block("bash")


def test_kubernetes_job_fits_together():
    service, job = yaml.safe_load_all(block("yaml"))
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["completionMode"] == "Indexed"
    assert pod["subdomain"] == service["metadata"]["name"]
    variables = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(variables["JAX_NUM_PROCESSES"])
    (port,) = container["ports"]
    host = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert variables["JAX_COORDINATOR_ADDRESS"] == f"{host}:{port['containerPort']}"
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert variables["JAX_PROCESS_ID"] == {"fieldRef": {"fieldPath": index}}
    (script,) = container["args"]
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    resumed, begun = (options(line) for line in re.findall(r"exec (equimorph .*)", script))
    assert resumed.resume == begun.out == "/runs/growth"
    assert resumed.distributed
    assert begun.distributed
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]
    assert begun.out.startswith(f"{mount['mountPath']}/")
