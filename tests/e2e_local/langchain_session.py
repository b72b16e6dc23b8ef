"""A LangChain client's session, run with the interpreter of an environment that has the MCP SDK 1.x.

Arguments: URL, token. Prints what it saw as one line of JSON.
"""

import asyncio
import json
import sys

from langchain_core.tools import ToolException  # type: ignore[import-not-found]
from langchain_mcp_adapters.client import (  # type: ignore[import-not-found]
    MultiServerMCPClient,
)


async def main(url: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "X-Session-ID": "langchain"}
    client = MultiServerMCPClient({"shell": {"transport": "streamable_http", "url": url, "headers": headers}})
    (tool,) = await client.get_tools()
    call = {"type": "tool_call", "id": "1", "name": "bash"}
    worked = await tool.ainvoke(call | {"args": {"command": "export STATE=kept; echo hi"}})
    again = await tool.ainvoke(call | {"args": {"command": "echo $STATE", "timeout": 5}})
    tool.handle_tool_error = False
    try:
        failed = await tool.ainvoke(call | {"args": {"command": "(exit 3)"}})
        failure = f"no error: {failed}"
    except ToolException as error:
        failure = str(error)
    print(
        json.dumps(
            {
                "name": tool.name,
                "arguments": sorted(tool.args),
                "worked": worked.content[0]["text"],
                "structured": worked.artifact["structured_content"]["exit_code"],
                "again": again.content[0]["text"],
                "failure": failure,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
