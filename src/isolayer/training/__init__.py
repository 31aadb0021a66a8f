"""Training from Parquet logs: streamed batches and the loop around them."""

from isolayer.errors import need

need("lightning")
