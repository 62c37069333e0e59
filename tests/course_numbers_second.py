"""What the numbers of chapters 10 and later should be; see test_course.py."""

NUMBERS: dict[str, dict[str, tuple[float, float, str]]] = {}
