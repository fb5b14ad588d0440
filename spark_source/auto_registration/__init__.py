"""A folder that is put on the path as it is, so that its module is a top-level one: see there."""
