"""A typed tool: its arguments and result are models, from which its schemas and its checks come.

Arguments come from a model that may err: what cannot be meant is refused with the names and what to send.
Results come from a sandbox that may lie: what does not fit the model is not passed on.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar

from mcp import types
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cli_mcp.execution import ExecutionError, ProgressCallback
from mcp_server.backend import SandboxBackend, SessionKey, SessionState
from mcp_server.result_schema import NOTES_SCHEMA, SESSION_SCHEMA
from mcp_server.results import MAX_ENCODED_BYTES, session_notes
from mcp_server.tool import InvalidCall
from mcp_server.tool_calls import Finished

_CALL_SECONDS = 30.0
_SHOWN_PROBLEMS = 5
_SHOWN_NAME_CHARACTERS = 40
_MISBEHAVES = (
    "What serves the tools in the sandbox gave an answer that is none: a process of the sandbox may "
    "interfere. Whether the call took effect is unknown."
)


class ToolArguments(BaseModel):
    """Arguments of one tool. Strings that are numbers count as such, since models send them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ToolResult(BaseModel):
    """Result of one tool. A later version of the sandbox may say more, which is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)

    def text(self) -> str:
        """The result for a reader."""
        raise NotImplementedError


def no_bool(value: object) -> object:
    """For a field that is a number: pydantic takes true for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _exact(value: int) -> int:
    if value > MAX_COUNT:
        raise ValueError(f"must be at most {MAX_COUNT}")
    return value


def _whole(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode: it contains half of a surrogate pair") from None
    return value


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("contains a NUL character, which no path, name or command can")
    return value


MAX_COUNT = 2**53 - 1
"""RFC 8259 section 6: beyond it numbers are not the same everywhere. No file is that large."""
# Limits come before validators: behind one, pydantic's schemas would call them `ge` and `le`.
Count = Annotated[int, Field(ge=0), BeforeValidator(no_bool), AfterValidator(_exact)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(no_bool), AfterValidator(_exact)]
Text = Annotated[str, AfterValidator(_whole)]
Word = Annotated[Text, AfterValidator(_without_nul)]
"""What becomes an argument of a system call."""

A = TypeVar("A", bound=ToolArguments)
R = TypeVar("R", bound=ToolResult)


@dataclass(frozen=True)
class TypedTool(Generic[A, R]):
    """See mcp_server.tool_calls.Tool. `call_seconds` is how long a call may take in the sandbox."""

    name: str
    title: str
    description: str
    arguments: type[A]
    result: type[R]
    annotations: types.ToolAnnotations
    call_seconds: Callable[[A], float] = lambda arguments: _CALL_SECONDS

    @cached_property
    def definition(self) -> types.Tool:
        output = schema(self.result)
        output["properties"] |= {"notes": NOTES_SCHEMA, "session": SESSION_SCHEMA}
        output["required"] = [*output["required"], "notes", "session"]
        return types.Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=schema(self.arguments),
            output_schema=output,
            annotations=self.annotations,
        )

    def prepare(self, arguments: Mapping[str, object]) -> "PreparedToolCall":
        valid = parse(self.arguments, arguments)
        sent = valid.model_dump(exclude_none=True)
        return PreparedToolCall(self.name, sent, self.result, self.call_seconds(valid))


@dataclass(frozen=True, slots=True)
class PreparedToolCall:
    """A call whose arguments are valid; `arguments` are those that the sandbox gets."""

    name: str
    arguments: Mapping[str, object]
    result: type[ToolResult]
    timeout_seconds: float

    async def run(
        self, backend: SandboxBackend, session: SessionKey, on_progress: ProgressCallback
    ) -> Finished:
        answer = await backend.call_tool(session, self.name, self.arguments, self.timeout_seconds)
        try:
            result = self.result.model_validate(answer.result)
        except ValidationError:
            raise ExecutionError(_MISBEHAVES) from None
        return Finished(_call_result(result, answer.session), "ok")


def parse(model: type[A], arguments: Mapping[str, object]) -> A:
    """Null stands for an argument that was left out. Raises InvalidCall."""
    given = {
        name: value
        for name, value in arguments.items()
        if value is not None or name not in model.model_fields
    }
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise InvalidCall(_problems(error, model)) from None


def schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of a model, without what a reader does not need: titles, and null for what may be left
    out."""
    found = model.model_json_schema(mode="serialization" if issubclass(model, ToolResult) else "validation")
    tidy: dict[str, Any] = _tidy(found, optional_null=issubclass(model, ToolArguments))
    tidy.setdefault("properties", {})
    if issubclass(model, ToolResult):
        tidy.setdefault("required", list(tidy["properties"]))
    return tidy


def _tidy(value: Any, *, optional_null: bool) -> Any:
    if isinstance(value, list):
        return [_tidy(item, optional_null=optional_null) for item in value]
    if not isinstance(value, dict):
        return value
    found = {
        key: _tidy(item, optional_null=optional_null)
        for key, item in value.items()
        if not (key == "title" and isinstance(item, str))
    }
    if "properties" in found:
        found.pop("description", None)  # of the class, which is for us
        # What Gemini's converters cannot read; other arguments are refused all the same.
        found.pop("additionalProperties", None)
    if optional_null and found.get("default", ...) is None:
        del found["default"]
        alternatives = [one for one in found.pop("anyOf", []) if one != {"type": "null"}]
        found = {**found, **(alternatives[0] if alternatives else {})}
    return found


def _problems(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence for each problem, naming the argument."""
    problems = error.errors(include_url=False, include_input=False)
    names = [_shown(problem["loc"]) for problem in problems if problem["type"] == "extra_forbidden"]
    sentences = []
    if names:
        takes = ", ".join(f"`{name}`" for name in model.model_fields) or "no arguments"
        sentences.append(f"Unknown arguments: {', '.join(names[:_SHOWN_PROBLEMS])}. The tool takes {takes}.")
    for problem in problems:
        if problem["type"] == "missing":
            sentences.append(f"{_shown(problem['loc'])} is missing.")
        elif problem["type"] != "extra_forbidden":
            message = problem["msg"].removeprefix("Value error, ")
            sentences.append(f"{_shown(problem['loc'])}: {message[:1].lower()}{message[1:]}.")
    return " ".join(sentences[:_SHOWN_PROBLEMS])


def _shown(location: tuple[int | str, ...]) -> str:
    name = ".".join(map(str, location))[:_SHOWN_NAME_CHARACTERS].encode("ascii", "replace").decode()
    return f"`{name}`" if name else "The arguments"


def _call_result(result: ToolResult, session: SessionState) -> types.CallToolResult:
    notes = session_notes(session)
    structured = {**result.model_dump(), "notes": notes, "session": session.value}
    text = "\n".join([result.text(), *(f"[{note}]" for note in notes)])
    if len(json.dumps([structured, text])) > MAX_ENCODED_BYTES:
        raise ExecutionError("The result is too large for a client. Ask for less at a time (`limit`).")
    return types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=structured, is_error=False
    )
