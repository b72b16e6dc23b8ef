"""What one answer of an agent may cost: bytes, pieces and silence. An honest agent never gets near."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Allowance:
    """`at_once`, and `per_second` more for each second that the answer takes."""

    at_once: float
    per_second: float
    spent: float = field(default=0, init=False)

    def spend(self, amount: float, elapsed_seconds: float) -> bool:
        """Whether it was enough."""
        self.spent += amount
        return self.spent <= self.at_once + self.per_second * elapsed_seconds


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """`silence_seconds` for each wait in it. `body_bytes` at once and `body_bytes_per_second`, in at most
    `chunks` and `chunks_per_second`."""

    silence_seconds: float
    body_bytes: int
    body_bytes_per_second: int = 0
    chunks: int = 64
    chunks_per_second: int = 0
