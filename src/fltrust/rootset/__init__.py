"""Is a root set good enough? Its size, its classes, its labels, and the trust that honest clients would get from it."""
