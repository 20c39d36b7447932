"""One import name, no forgotten package, and imports that wait until they are needed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import equimorph

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("envs", "agents", "training")


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120)


def loaded_by(code: str, cwd: Path) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running code."""
    run = python(f"{code}\nimport sys; print('\\nmodules', *sys.modules)", cwd)
    assert run.returncode == 0, run.stderr
    return {name.split(".")[0] for name in run.stdout.splitlines()[-1].split()}


def test_every_package_folder_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        ".".join(["equimorph", *init.parent.relative_to(ROOT).parts])
        for room in ROOMS
        for init in (ROOT / room).rglob("__init__.py")
    }
    assert set(listed) == {"equimorph", *folders}


def test_every_folder_with_code_is_a_package():
    for room in ROOMS:
        for module in (ROOT / room).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module.parent


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_have_no_second_name(room, tmp_path):
    run = python(f"import equimorph.{room}; import {room}", tmp_path)
    assert f"No module named '{room}'" in run.stderr


def test_pytest_does_not_put_the_checkout_on_the_path(tmp_path):
    test = tmp_path / "test_path.py"
    test.write_text("import importlib.util\ndef test(): assert importlib.util.find_spec('envs') is None\n")
    command = [Path(sys.executable).with_name("pytest"), "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", test]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout


def test_public_names_resolve():
    assert set(equimorph.__all__) <= set(dir(equimorph))
    for name in equimorph.__all__:
        assert getattr(equimorph, name) is getattr(equimorph, name)
    with pytest.raises(AttributeError, match="no attribute 'mke'"):
        _ = equimorph.mke


def test_import_waits_for_heavy_libraries(tmp_path):
    assert not {"jax", "equinox", "distrax", "jax_morph", "gymnax"} & loaded_by("import equimorph", tmp_path)


def test_registry_waits_for_distributions_and_simulator(tmp_path):
    code = "import equimorph; equimorph.make; equimorph.list_envs()"
    assert not {"distrax", "tensorflow_probability", "jax_morph"} & loaded_by(code, tmp_path)


def test_help_answers_without_jax(tmp_path):
    code = (
        "import sys, contextlib\n"
        "from equimorph.training.cli import main\n"
        "sys.argv = ['equimorph', '--help']\n"
        "with contextlib.suppress(SystemExit): main()"
    )
    loaded = loaded_by(code, tmp_path)
    assert "equimorph" in loaded
    assert not {"jax", "gymnax", "pydantic"} & loaded


def test_command_is_installed(tmp_path):
    command = Path(sys.executable).with_name("equimorph")
    run = subprocess.run([command, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0
    assert run.stdout.startswith("usage: equimorph")
