"""Training from Parquet logs: streamed batches and the loop around them."""
