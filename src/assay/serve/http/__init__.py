"""The HTTP layer: connections, bodies within limits, replies and event streams, the guard. It knows no model."""
