"""What somebody would send who means harm: mutated models, and hostile calls among innocent ones."""
