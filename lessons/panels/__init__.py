"""The lessons' figures.

Each is three things: numbers (a frozen dataclass that also writes the alternative text), a pure `compute_…`
that makes them, and artists that are built once and take new numbers as often as there are any, by
`artists.draw(numbers)`.
"""
