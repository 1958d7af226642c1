"""What others wrote, as it can be shown: nothing in it acts on a terminal, turns what stands beside it, or hides.

Rule: letters, line ends and tabs stay; control characters, marks of direction and halves of pairs become escapes.
"""

import unicodedata

_KEPT = frozenset("\n\t")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


class _Shown(dict[int, str]):
    """How each character is shown; what was looked up once is kept: there are not that many."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        is_shown = char in _KEPT or unicodedata.category(char) not in _HIDDEN
        return self.setdefault(code, char if is_shown else char.encode("unicode_escape").decode())


_SHOWN = _Shown()


def visible(text: str) -> str:
    r"""Return the text with what a terminal or a page would act on written as an escape.

    >>> visible("\x1b[2Jgone \u202e")
    '\\x1b[2Jgone \\u202e'
    """
    return text if text.isascii() and text.isprintable() else text.translate(_SHOWN)


def in_a_line(text: str) -> str:
    r"""Return the text as it is visible, in one line: what others wrote must not look like what we say.

    >>> in_a_line("Ok?\n  answer  yes")
    'Ok?\\n  answer  yes'
    """
    return visible(text).replace("\n", r"\n")
