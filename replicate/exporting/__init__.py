"""Floor 3, wing d: SavedModels that any machine loads, and what loads them."""
