"""The public HTTP listener of a broker: `app.build_app`, `app.HttpServer`."""
