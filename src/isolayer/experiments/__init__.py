"""One file per table or figure of the paper, and one per study on real data."""
