"""What others wrote, as it can be shown: nothing in it acts on a terminal, turns what stands beside it, or hides.

Rule: letters, line ends and tabs stay; control characters, marks of direction and halves of pairs become escapes.
"""

import unicodedata

_KEPT = frozenset("\n\t")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(text: str) -> str:
    r"""Return the text with what a terminal or a page would act on written as an escape.

    >>> visible("\x1b[2Jgone \u202e")
    '\\x1b[2Jgone \\u202e'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in _KEPT or unicodedata.category(char) not in _HIDDEN else char.encode("unicode_escape").decode()
        for char in text
    )


def in_a_line(text: str) -> str:
    r"""Return the text as it is visible, in one line: what others wrote must not look like what we say.

    >>> in_a_line("Ok?\n  answer  yes")
    'Ok?\\n  answer  yes'
    """
    return visible(text).replace("\n", r"\n")
