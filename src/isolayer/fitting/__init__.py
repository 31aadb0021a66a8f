"""From rows to knot values, on numpy alone: rows are binned, summed, and fitted exactly."""
