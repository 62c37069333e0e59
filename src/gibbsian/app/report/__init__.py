"""One HTML file a run: what was trained, how it went, what came out, and how to do it again."""

from gibbsian.app.report.build import write_report

__all__ = ["write_report"]
