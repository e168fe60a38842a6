"""The repository itself: what imports cost, what is pinned, and whether the documents say what is there."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import headway
from headway import errors, spec
from tools import map as code_map
from tools import pins

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "headway"
READMES = ("README.md", "README.zh-CN.md")
TORCH_FREE = ("errors", "spec", "checkpoint", "text", "families", "source", "generate", "native", "tape", "quant")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAVY = {"torch", "numpy", "tokenizers", "huggingface_hub", "jinja2", "transformers"}


def python(code: str) -> str:
    """What a fresh interpreter prints for `code`."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def heavy_after(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has imported after `code`."""
    return HEAVY & set(python(f"import sys\n{code}\nprint(*sys.modules)").split())


@cache
def modules() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def committed() -> tuple[Path, ...]:
    """The files that git keeps, as they are now."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def make(*arguments: str) -> str:
    """What make prints for `arguments`, told nothing by a make that runs these tests."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PROMPT"))
    }
    command = ["make", "-s", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, encoding="utf-8")
    return done.stdout


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# Imports


def test_importing_headway_imports_nothing_heavy() -> None:
    assert heavy_after("import headway; headway.__version__; dir(headway)") == set()


@pytest.mark.parametrize("name", ["ModelSpec", "SpecError"])
def test_specs_and_errors_come_without_torch(name: str) -> None:
    assert heavy_after(f"from headway import {name}") == set()


def test_torch_free_modules_run_without_torch() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules()]
    names = [name.removesuffix(".__init__") for name in names if name.split(".")[1] in TORCH_FREE]
    assert "torch" not in heavy_after(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")


def test_the_import_contract_forbids_torch_to_every_torch_free_part() -> None:
    contracts = code_map.settings()["tool"]["importlinter"]["contracts"]
    contract = next(contract for contract in contracts if contract.get("forbidden_modules") == ["torch"])
    there = {
        f"headway.{name}"
        for name in TORCH_FREE
        if list(PACKAGE.glob(f"{name}/*.py")) or (PACKAGE / f"{name}.py").exists()
    }
    assert set(contract["source_modules"]) == there


# Public names


def test_every_public_name_is_there() -> None:
    missing = [name for name in headway.__all__ if getattr(headway, name, None) is None]
    assert missing == []


def is_class(part: ModuleType, name: str) -> bool:
    value = getattr(part, name)
    return isinstance(value, type) and value.__name__ == name


def test_every_spec_class_and_every_error_is_public() -> None:
    classes = {name for part in (spec, errors) for name in vars(part) if is_class(part, name)}
    assert classes - set(headway.__all__) == set()


def test_type_checkers_see_the_names_that_exist() -> None:
    branch = next(node for node in ast.parse(read("headway/__init__.py")).body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: headway._home(name) for name in headway.__all__}


def test_an_unknown_name_is_refused_with_the_way_out() -> None:
    with pytest.raises(AttributeError, match="no public name 'laod': dir\\(headway\\)") as caught:
        headway.laod  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("laod", headway)
    assert set(headway.__all__) < set(dir(headway))


# Pins


def test_every_requirement_and_what_it_brings_along_is_pinned() -> None:
    assert pins.closure(pins.direct()) - set(pins.pinned()) == set()


def test_the_base_install_is_what_the_code_imports() -> None:
    imported: set[str] = set()
    for node in (node for path in modules() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    asked = {requirement.name.replace("-", "_") for requirement in pins.base()}
    assert imported - set(sys.stdlib_module_names) - {"headway"} == asked


def test_pins_fit_what_pyproject_asks_for() -> None:
    versions = pins.pinned()
    assert [str(r) for r in pins.direct() if versions.get(pins.canonicalize_name(r.name), "0") not in r.specifier] == []


# Documents


def test_every_module_has_a_docstring_of_one_line() -> None:
    lines = {path: code_map.docstring(path) for path in modules()}
    assert [str(path) for path, line in lines.items() if not line or "\n" in line or not line.endswith(".")] == []


def test_the_map_is_what_make_docs_writes() -> None:
    assert code_map.MAP.read_text(encoding="utf-8") == code_map.text(), "docs/map.md is old: run make docs"


def outline(text: str) -> dict[str, list[object]]:
    """The structure of a Markdown page without its words."""
    prose = BLOCK.sub("", text)
    return {
        "headings": re.findall(r"^(#+) ", prose, re.MULTILINE),
        "items": re.findall(r"^(- |\|)", prose, re.MULTILINE),
        "links": [link for link in re.findall(r"\]\(([^)]+)\)", prose) if link not in READMES],
        "commands": re.findall(r"`headway [^`]+`", prose),
        "code": [
            (language, [without_words(line) for line in body.splitlines()]) for language, body in BLOCK.findall(text)
        ],
    }


def without_words(line: str) -> str:
    """A line of code without its comment, or of a tree without what it says beside the name."""
    return re.split(r"\s+#|(?<=\S)\s{2,}", line)[0]


def test_both_readmes_have_the_same_structure() -> None:
    english, chinese = (outline(read(name)) for name in READMES)
    assert english == chinese


@pytest.mark.parametrize("name", READMES)
def test_readme_names_every_part_of_the_tree(name: str) -> None:
    tree = next(body for language, body in BLOCK.findall(read(name)) if language == "text")
    parts = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or list(path.glob("*.py"))]
    inside = {path.name + "/" * path.is_dir() for path in parts}
    expected = {child for child in inside if not child.startswith("__")}
    assert set(re.findall(r"^  (\S+)", tree, re.MULTILINE)) == expected


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md"])
def test_make_commands_in_documents_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", read(name), re.MULTILINE)) - targets == set()


def test_make_lists_every_target_that_does_something() -> None:
    targets = ["run", "test", "check", "parity", "bench", "bench-peers", "docs", "pins"]
    assert re.findall(r"make ([\w-]+) ", make()) == targets


def test_relative_links_of_documents_resolve() -> None:
    pages = [path for path in committed() if path.suffix == ".md"]
    assert pages
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))]
    relative = [(page, link) for page, link in links if not re.match(r"\w+:", link)]
    broken = [f"{page.relative_to(ROOT)}: {link}" for page, link in relative if not (page.parent / link).exists()]
    assert broken == []


def test_no_committed_file_names_one_machine_or_one_registry() -> None:
    folders = r"(?<![\w.])/(?:root|work|opt|home/\w+|Users/\w+)/"
    hosts = "|".join(
        ("pypi[.]org", "pythonhosted", "registry[.]npmjs", "deb[.]debian", "download[.]pytorch", "file:/" + "/")
    )
    pattern = re.compile(f"{folders}|{hosts}")
    here = Path(__file__)
    found = []
    for path in committed():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        if path != here and (hit := pattern.search(text)):
            found.append(f"{path.relative_to(ROOT)}: {hit[0]}")
    assert found == []


# The commands


@pytest.mark.parametrize("prompt", ['What\'s "5 x $3"?', "$(HOME) `id` \\n", "你好，世界", "two\nlines", "--help"])
def test_make_run_hands_the_prompt_over_as_it_was_typed(prompt: str, tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("import sys; sys.stdout.buffer.write(ascii(sys.argv[1:]).encode())", encoding="utf-8")
    said = make("-o", ".venv/base", "run", f"VENV_PYTHON={sys.executable} {probe}", f"PROMPT={prompt}")
    assert ast.literal_eval(said) == ["-m", "headway", "chat", "smollm2", f"--prompt={prompt}"]
