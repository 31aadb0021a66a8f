"""Fitted curves in other formats: SQL text and ONNX models."""
