"""Engines that exist only for speed. They know no model."""
