"""How the server talks to the agents in sandbox pods, whose answers are hostile input."""
