"""Routes of the public listener, one module per noun."""
