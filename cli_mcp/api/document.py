"""Instances in YAML: plain data with line numbers, and nothing that a Kubernetes client would not read alike.

No object construction, no duplicate keys, and a bound on what aliases expand to.
"""

from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import ValidationError

from cli_mcp.api.instance import CliMcpInstance
from cli_mcp.api.problems import InvalidInstance, Path, Problem, problems_of
from cli_mcp.names import API_VERSION, KIND

# etcd takes no object that is larger.
MAX_TEXT_BYTES = 1_500_000
# A generous instance has some thousand nodes; aliases of aliases reach this within a few lines.
MAX_NODES = 100_000
MAX_DEPTH = 64

_YAML = "tag:yaml.org,2002:"
_COLLECTIONS = {_YAML + "map", _YAML + "seq"}
_SCALARS = {_YAML + kind for kind in ("bool", "float", "int", "null", "str")}
# Kubernetes reads YAML as JSON, which has no dates: they stay text.
_TIMESTAMP = _YAML + "timestamp"
_MERGE = _YAML + "merge"
_LISTS = ("List", f"{KIND}List")


class UnreadableYaml(ValueError):
    """Text that is no YAML, or none that is accepted here. `line` counts from 1, None when unknown."""

    def __init__(self, text: str, line: int | None = None) -> None:
        self.text = text
        self.line = line
        super().__init__(text if line is None else f"line {line}: {text}")


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document as plain data, and the line (from 1) at which each path begins."""

    data: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """The line of the field, or of the closest one around it when the file does not have it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines[path]

    def is_instance(self) -> bool:
        return isinstance(self.data, dict) and self.data.get("kind") == KIND

    def objects(self) -> list["Document"]:
        """Those of a list, as `kubectl get -o yaml` prints one; of another document it alone."""
        if not isinstance(self.data, dict) or self.data.get("kind") not in _LISTS:
            return [self]
        items = self.data.get("items")
        if not isinstance(items, list):
            return [self]
        lines: list[dict[Path, int]] = [{} for _ in items]
        for path, line in self.lines.items():
            match path:
                case ("items", int(index), *rest):
                    lines[index][tuple(rest)] = line
        return [Document(item, its) for item, its in zip(items, lines, strict=True)]


def load_documents(text: str) -> list[Document]:
    """All documents but the empty ones; of a list its items. Raises UnreadableYaml."""
    if len(text.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
        raise UnreadableYaml(f"more than {MAX_TEXT_BYTES} bytes; the cluster takes no object of that size")
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        documents = []
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            reader = _Reader(loader)
            data = reader.read(node, ())
            if data is not None:
                documents += Document(data, reader.lines).objects()
        return documents
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = f"{error.problem or error.context}; check indentation, quotes and colons near this line"
        raise UnreadableYaml(text, mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise UnreadableYaml(str(error).replace("\n", " ")) from error
    except RecursionError as error:
        raise UnreadableYaml("nested too deeply; an instance is not") from error
    finally:
        if loader is not None:
            loader.dispose()


class _Reader:
    """Turns the nodes of one document into plain data and remembers their lines."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.lines: dict[Path, int] = {}
        self._loader = loader
        self._nodes_left = MAX_NODES

    def read(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._nodes_left -= 1
        if self._nodes_left < 0 or len(path) > MAX_DEPTH:
            raise UnreadableYaml("aliases or nesting expand to far more than an instance can hold", line)
        if node.tag not in _SCALARS | _COLLECTIONS | {_TIMESTAMP}:
            raise UnreadableYaml(f"the tag {node.tag!r} is not supported; write the plain value", line)
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return node.value if node.tag == _TIMESTAMP else self._construct(node)

    def _read_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                raise UnreadableYaml("merge keys (<<) are not supported; write the fields out", line)
            key = self._construct(key_node) if key_node.tag in _SCALARS else None
            if not isinstance(key, str):
                raise UnreadableYaml("the name of a field must be text; put it in quotes", line)
            if key in mapping:
                raise UnreadableYaml(f"{key!r} stands here twice; remove one", line)
            self.lines[(*path, key)] = line
            mapping[key] = self.read(value_node, (*path, key))
        return mapping

    def _construct(self, node: yaml.Node) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:  # a tag that does not fit its value, such as !!int x
            raise UnreadableYaml(f"{node.value!r} does not fit its tag", node.start_mark.line + 1) from error


def parse_instance(data: Any) -> CliMcpInstance:
    """The instance in plain data, such as a decoded JSON object. Raises InvalidInstance with all problems."""
    try:
        return CliMcpInstance.model_validate(data)
    except ValidationError as error:
        raise InvalidInstance(problems_of(error, CliMcpInstance)) from error


def load_instance(text: str) -> CliMcpInstance:
    """The one CliMcpInstance in YAML text; documents of other kinds (Secrets, say) are passed over.

    Raises UnreadableYaml, and InvalidInstance with all problems, also when there is none or more than one.
    """
    instances = [document for document in load_documents(text) if document.is_instance()]
    if not instances:
        text = f"no {KIND} here; begin with apiVersion: {API_VERSION} and kind: {KIND}"
        raise InvalidInstance([Problem((), text)])
    if len(instances) > 1:
        lines = ", ".join(str(document.line_of(())) for document in instances)
        raise InvalidInstance([Problem((), f"more than one {KIND} (lines {lines}); give each its own file")])
    return parse_instance(instances[0].data)
