"""Decorators for the outcome of a bad input or fault that a test shows. tests/architecture/catalogue.py reads the decorators and holds them complete.

    @outcome(30, "refused", "realm of a file, in the clear, foreign")

The number names the fault everywhere. Several tests may show one fault and say the same of it. Outcomes: "accepted"; "refused",
with a line that gives the reason; "contained", that is accepted or refused without an effect outside; "degraded", with a
warning. `differs` states what the product does instead, `untested` the part that no test shows, each with the reason.

Tests that are no functions (rows of a table, C++, fuzz targets) carry a comment above them:

    # outcome 30 refused: realm of a file, in the clear, foreign
    #     untested: why
"""
OUTCOMES = ("accepted", "refused", "contained", "degraded")


def outcome(number, result, fault, *, differs=None, untested=None):
    """Decorator: adds an outcome to those that the test shows."""
    assert result in OUTCOMES, result

    def decorate(test):
        test.outcomes = (*getattr(test, "outcomes", ()), (number, result, fault, differs, untested))
        return test

    return decorate
