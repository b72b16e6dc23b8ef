"""`cli-mcp validate FILE...`: everything that is wrong with CliMcpInstance files, by line and field.

Nothing is sent anywhere: what the cluster holds (Secrets, other objects) is not looked at.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from cli_mcp.api.advice import advice
from cli_mcp.api.document import Document, UnreadableYaml, load_documents, parse_instance
from cli_mcp.api.problems import InvalidInstance, Problem
from cli_mcp.arguments import ArgumentParser
from cli_mcp.names import API_VERSION, KIND

_EXIT_VALID = 0
_EXIT_INVALID = 1
_EXIT_UNREADABLE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """A line for the reader; `line` counts from 1, None when it is about the whole file."""

    text: str
    line: int | None = None
    is_warning: bool = False

    def shown(self, file: str) -> str:
        place = file if self.line is None else f"{file}:{self.line}"
        return f"{place}: {'warning: ' if self.is_warning else ''}{self.text}"


def check_text(text: str) -> list[Finding]:
    """All findings in one file, whatever documents it has; without an error among them it is valid."""
    try:
        documents = load_documents(text)
    except UnreadableYaml as error:
        return [Finding(f"not readable as YAML: {error.text}", error.line)]
    if not documents:
        return [Finding(f"empty; begin with apiVersion: {API_VERSION} and kind: {KIND}")]
    findings = [finding for document in documents for finding in _check_document(document)]
    if not any(document.is_instance() for document in documents) and not findings:
        findings.append(Finding(f"no {KIND} here, so there is nothing to check; is this the file you meant?"))
    return findings


def _check_document(document: Document) -> Iterator[Finding]:
    if not isinstance(document.data, dict) or "kind" not in document.data:
        text = f"not a Kubernetes object; begin with apiVersion: {API_VERSION} and kind: {KIND}"
        yield Finding(text, document.line_of(()))
        return
    if not document.is_instance():
        if _means_an_instance(document.data["kind"]):
            problem = Problem(("kind",), f"must be {KIND}, written exactly so")
            yield Finding(str(problem), document.line_of(problem.path))
        return  # Secrets and the like may stand in the same file
    try:
        instance = parse_instance(document.data)
    except InvalidInstance as error:
        findings = [Finding(str(problem), document.line_of(problem.path)) for problem in error.problems]
        yield from sorted(findings, key=lambda finding: finding.line or 0)
        return
    for problem in advice(instance):
        yield Finding(str(problem), document.line_of(problem.path), is_warning=True)


def _means_an_instance(kind: object) -> bool:
    return str(kind).lower().replace("-", "").rstrip("s") == KIND.lower()


def main(arguments: list[str]) -> int:
    """Exit status: 0 valid (warnings allowed), 1 something is wrong in a file, 2 a file cannot be read."""
    options = _parser().parse_args(arguments)
    status = _EXIT_VALID
    for file in options.files:
        name = "stdin" if file == "-" else file
        try:
            text = _read(file, sys.stdin)
        except (OSError, UnicodeDecodeError) as error:
            print(f"{name}: {_cause(error)}", file=sys.stderr)
            status = _EXIT_UNREADABLE
            continue
        findings = check_text(text)
        for finding in findings:
            print(finding.shown(name))
        if any(not finding.is_warning for finding in findings):
            status = max(status, _EXIT_INVALID)
        else:
            print(f"{name}: valid")
    return status


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="cli-mcp validate",
        description=f"Check {KIND} files for everything that local mode or a cluster would refuse.",
        epilog="Exit status: 0 valid, 1 something is wrong in a file, 2 a file cannot be read.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML file; - is the standard input")
    return parser


def _read(file: str, stdin: TextIO) -> str:
    return stdin.buffer.read().decode() if file == "-" else Path(file).read_text(encoding="utf-8")


def _cause(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return f"is not UTF-8 (byte {error.start}); save it as UTF-8"
