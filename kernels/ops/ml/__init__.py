"""Operators of classical machine learning that standard operators do not express well."""
