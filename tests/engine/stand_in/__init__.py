"""An engine that is none: it replays a recorded start, answers, and dies on request."""
