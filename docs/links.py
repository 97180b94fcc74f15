"""Check that what the documents name exists: links, anchors, files, modules, jobs, make targets, settings and tables.

    .venv/bin/python docs/links.py      (make lint runs it)

Checked are README.md, ARCHITECTURE.md, CONTRIBUTING.md and all pages below docs/, and each path of a page or a
module that a source file names. Only files of this checkout are read; addresses of the web are not visited. A page
below docs/ links to pages below docs/ only, because only these are on the site. Every finding is a line
`file:line: what is wrong`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from coldlog.runtime.settings_sources import list_setting_keys

REPOSITORY = Path(__file__).resolve().parents[1]
_NAMED_FILE = re.compile(r"(?<![\w/.*-])(?:docs|lib/coldlog|tests|benchmarks|jobs|dags)/[\w/-]+\.(?:md|py|sql)\b")
_SOURCES = (
    "lib/coldlog",
    "lib/java",
    "jobs",
    "dags",
    "conf",
    "tests",
    "benchmarks",
    "Makefile",
    "environment.py",
    ".ci",
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:lib|tests|conf|docs|jobs|dags|benchmarks|notebooks)/[\w./-]*\w")
_MODULE = re.compile(r"coldlog(?:\.\w+)+")
_IMPORT = re.compile(r"^\s*from (coldlog[\w.]*) import ([\w, ]+)", re.MULTILINE)
_MAKE = re.compile(r"\bmake ([a-z-]+)")
_JOB = re.compile(r"spark-submit\.sh ([a-z]\w+)")
_SETTING = re.compile(r"--set ([a-z][\w.]*)=")


def main() -> int:
    """Print every finding; the exit code is 1 where there is one."""
    found = [*check_documents(REPOSITORY), *check_sources(REPOSITORY), *check_navigation(REPOSITORY)]
    print("\n".join(found) if found else "links and references of the documents: all found")
    return 1 if found else 0


def check_documents(root: Path) -> Iterator[str]:
    """What is wrong in the documents below `root`."""
    tops = [root / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    for document in [*(each for each in tops if each.exists()), *sorted((root / "docs").rglob("*.md"))]:
        text = document.read_text(encoding="utf-8")
        for position, problem in [*_broken_links(root, document, text), *_stale_references(root, text)]:
            yield f"{document.relative_to(root)}:{text.count(chr(10), 0, position) + 1}: {problem}"


def check_sources(root: Path) -> Iterator[str]:
    """Pages and modules that source files name by path and that do not exist."""
    files = [each for top in _SOURCES for each in ([root / top] if (root / top).is_file() else (root / top).rglob("*"))]
    for file in sorted(each for each in files if _is_source(each)):
        text = file.read_text(encoding="utf-8")
        for named in _NAMED_FILE.finditer(text):
            if not (root / named[0]).exists():
                yield f"{file.relative_to(root)}:{text.count(chr(10), 0, named.start()) + 1}: there is no {named[0]}"


def check_navigation(root: Path) -> Iterator[str]:
    """Pages that mkdocs.yml names and that do not exist, and pages that it does not name."""
    named = set(re.findall(r"^ +- ([\w/-]+\.md)$", (root / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {str(each.relative_to(root / "docs")) for each in (root / "docs").rglob("*.md")}
    yield from (f"mkdocs.yml: there is no docs/{page}" for page in sorted(named - pages))
    yield from (f"mkdocs.yml: docs/{page} is in no menu" for page in sorted(pages - named))


def _is_source(file: Path) -> bool:
    suffixes = {".py", ".sql", ".toml", ".java", ".conf", ".cfg", ""}
    return file.is_file() and file.suffix in suffixes and not {"golden", "documents", "__pycache__"} & {*file.parts}


def _broken_links(root: Path, document: Path, text: str) -> Iterator[tuple[int, str]]:
    for link in _LINK.finditer(_without_code(text)):
        target, _, anchor = link[1].partition("#")
        if re.match(r"[a-z]+:", link[1]):
            continue
        page = (document.parent / target).resolve() if target else document
        if not page.exists():
            yield link.start(), f"broken link: there is no {link[1]}"
        elif document.is_relative_to(root / "docs") and not page.is_relative_to(root / "docs"):
            yield link.start(), f"the site has no {link[1]}: write the path as code, not as a link"
        elif anchor and anchor not in _anchors(page):
            yield link.start(), f"broken link: {target or document.name} has no heading #{anchor}"


def _stale_references(root: Path, text: str) -> Iterator[tuple[int, str]]:
    jobs = {each.stem for each in (root / "jobs").glob("*.py")}
    settings = {"key", *(each.key for each in list_setting_keys())}
    for pattern, known, kind in ((_JOB, jobs, "job"), (_SETTING, settings, "setting")):
        for each in pattern.finditer(text):
            if each[1] not in known and not each[1].startswith("spark."):
                yield each.start(), f"there is no {kind} {each[1]}"
    for code in _CODE.finditer(_without_fences(text)):
        yield from ((code.start(), problem) for problem in _missing_names(root, code[1]))
    for statement in _IMPORT.finditer(text):
        for name in statement[2].split(","):
            if not _is_in_library(root, f"{statement[1]}.{name.strip()}"):
                yield statement.start(), f"there is no {statement[1]}.{name.strip()}"


def _missing_names(root: Path, code: str) -> Iterator[str]:
    """Paths, modules and targets of make in a code span that do not exist."""
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    yield from (f"there is no make target {each}" for each in _MAKE.findall(code) if each not in targets)
    if _PATH.fullmatch(code) or re.fullmatch(r"\w+(?:/\w+)*/\w+\.(?:py|sql)", code):
        if not (root / code).exists() and not (root / "lib" / "coldlog" / code).exists():
            yield f"there is no {code}"
    elif _MODULE.fullmatch(code) and not _is_in_library(root, code) and code.split(".")[1] not in _relations(root):
        yield f"there is no {code}"


def _is_in_library(root: Path, dotted: str) -> bool:
    """It is a package or a module, or a name at the top of one, or a name in a class there."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = root.joinpath("lib", *parts[:length])
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if module.exists():
            names = parts[length:]
            return not names or names[0] in _names_in(module)
    return False


@cache
def _names_in(module: Path) -> frozenset[str]:
    names: set[str] = set()
    for statement in ast.parse(module.read_text(encoding="utf-8")).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(each.asname or each.name for each in aliases)
            case ast.Assign() | ast.AnnAssign():
                names.update(each.id for each in ast.walk(statement) if isinstance(each, ast.Name))
    return frozenset(names)


@cache
def _relations(root: Path) -> frozenset[str]:
    """Tables, views and functions, which are `coldlog.<name>` in SQL; `coldlog.jar` and the like are not."""
    definitions = (root / "lib/coldlog/tables/definitions").rglob("*.py")
    return frozenset(
        [each.stem for each in definitions] + [each.stem for each in (root / "lib/coldlog/lookups/sql").glob("*.sql")]
    )


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Anchors of the headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", _without_fences(page.read_text(encoding="utf-8")), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", each.lower()).strip().replace(" ", "-") for each in headings)


def _without_fences(text: str) -> str:
    """The text with fenced code blanked out; positions stay."""
    return re.sub(r"^```.*?^```$", _blank, text, flags=re.MULTILINE | re.DOTALL)


def _without_code(text: str) -> str:
    return _CODE.sub(_blank, re.sub(r"^    .*$", _blank, _without_fences(text), flags=re.MULTILINE))


def _blank(code: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", code[0])


if __name__ == "__main__":
    sys.exit(main())
