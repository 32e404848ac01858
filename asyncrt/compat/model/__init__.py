"""A session's model: what is loaded for it, what is known of it, and what it is fed."""
