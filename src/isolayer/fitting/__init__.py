"""From rows to knot values, with numpy alone: rows are binned, summed, and fitted exactly."""
