"""SavedModels that any machine loads, and what loads them."""
