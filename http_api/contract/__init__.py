"""JSON shapes, media types and the one error table."""
