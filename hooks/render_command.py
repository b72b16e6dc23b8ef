"""`cli-mcp render FILE`: the children that an instance would have, as YAML, and why the gate is closed if it
is."""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import yaml

from cli_mcp.api.document import UnreadableYaml, load_documents, parse_instance
from cli_mcp.api.problems import InvalidInstance
from cli_mcp.arguments import ArgumentParser
from hooks.preview import ASSUMED_ADDRESS, ASSUMED_SERVER, Preview, preview_observed, preview_settled
from hooks.settings import InvalidSettings, settings_from
from hooks.wire import MalformedRequest, Manifest

_EXIT_INVALID = 1
_EXIT_UNREADABLE = 2


class _Unusable(Exception):
    """Input that cannot be rendered; `status` is the exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class _BlockText(yaml.SafeDumper):
    """Texts of several lines as blocks."""


_BlockText.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        settings = settings_from(os.environ)
        instance = _instance(options.file)
        if options.observed is None:
            preview = preview_settled(instance, settings)
        else:
            preview = preview_observed(instance, _objects(options.observed), settings, datetime.now(UTC))
    except _Unusable as error:
        print(f"cli-mcp render: {error}", file=sys.stderr)
        return error.status
    except (InvalidSettings, MalformedRequest) as error:
        print(f"cli-mcp render: {error}", file=sys.stderr)
        return _EXIT_INVALID
    print(as_yaml(preview, assumed=options.observed is None), end="")
    return 0


def as_yaml(preview: Preview, *, assumed: bool) -> str:
    """A comment with gate and Ready condition, then one document for each child."""
    ready = next(it for it in preview.status["conditions"] if it["type"] == "Ready")
    head = [f"# Gate: {'closed: ' + preview.gate if preview.gate else 'open'}"]
    if assumed:
        head.append(
            "# Assumed: all other objects are there, the admin's Secrets too; "
            f"the kubeconfig is for {ASSUMED_SERVER}, the proxy has the address {ASSUMED_ADDRESS}."
        )
    else:
        head.append(f"# Ready: {ready['status']}, {ready['reason']}: {ready['message']}")
    documents = yaml.dump_all(
        preview.children, Dumper=_BlockText, sort_keys=False, width=10_000, allow_unicode=True
    )
    return "\n".join(head) + "\n---\n" + documents


def _instance(file: str) -> Manifest:
    text = _read(file)
    try:
        documents = [document for document in load_documents(text) if document.is_instance()]
        for document in documents:
            parse_instance(document.data)
    except UnreadableYaml as error:
        raise _Unusable(f"{file}: {error}", _EXIT_UNREADABLE) from error
    except InvalidInstance as error:
        raise _Unusable(f"{file}: {error}", _EXIT_INVALID) from error
    if len(documents) != 1:
        raise _Unusable(f"{file} has {len(documents)} instances; give a file with one", _EXIT_INVALID)
    found: Manifest = documents[0].data
    return found


def _objects(file: str) -> list[Manifest]:
    try:
        documents = [document.data for document in load_documents(_read(file))]
    except UnreadableYaml as error:
        raise _Unusable(f"{file}: {error}", _EXIT_UNREADABLE) from error
    objects = [item for document in documents for item in _items(document)]
    if not all(isinstance(it, dict) and {"apiVersion", "kind", "metadata"} <= it.keys() for it in objects):
        raise _Unusable(
            f"{file}: not the output of kubectl get -o yaml, a List or Kubernetes objects", _EXIT_INVALID
        )
    return objects


def _items(document: object) -> Iterator[Manifest]:
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        yield from document.get("items") or ()
    else:
        yield document  # type: ignore[misc]  # checked by the caller


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _Unusable(f"{file} cannot be read: {error}", _EXIT_UNREADABLE) from error


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="cli-mcp render",
        description="Print what an instance would bring into a cluster. Contents of Secrets are not shown.",
    )
    parser.add_argument("file", metavar="FILE", help="a file with one CliMcpInstance; - is stdin")
    parser.add_argument(
        "--observed",
        metavar="FILE",
        help="what is in the namespace, from kubectl get -o yaml; without it everything is assumed in place",
    )
    return parser
