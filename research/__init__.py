"""The paper's tables and figures, and studies on public data: ``python -m research``. Not part of the package."""
