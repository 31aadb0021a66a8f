"""Fitted curves: the object that a fit returns, its file format, and its exports."""
