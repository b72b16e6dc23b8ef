import io

from cli_mcp.client.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_changes_and_disappears() -> None:
    terminal = Terminal()
    progress = ProgressLine(terminal)
    progress.show(1, "running")
    progress.show(2, "10 bytes of output: x")
    progress.clear()
    assert terminal.getvalue() == "\r\x1b[K[1 s] running\r\x1b[K[2 s] 10 bytes of output: x\r\x1b[K"


def test_a_log_gets_lines_that_become_rare() -> None:
    log = io.StringIO()
    progress = ProgressLine(log)
    for seconds in range(1, 40):
        progress.show(seconds, "running")
    progress.clear()
    assert log.getvalue().splitlines() == [f"[{seconds} s] running" for seconds in (1, 2, 4, 8, 16, 32)]


def test_the_sandboxs_output_cannot_draw_on_the_terminal() -> None:
    terminal = Terminal()
    ProgressLine(terminal).show(1, "\x1b]0;title\x07 \x1b[2J\r\n" + "y" * 500)
    (_, shown) = terminal.getvalue().split("\x1b[K")
    assert shown.isprintable()
    assert len(shown) < 80
